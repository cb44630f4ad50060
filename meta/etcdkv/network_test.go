package etcdkv_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/catalog/kvtest"
	"github.com/varve-io/varve/meta/etcdkv"
)

// free finds loopback ports that nobody uses.
func free(t *testing.T, n int) []string {
	t.Helper()
	var urls []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		urls = append(urls, "http://"+l.Addr().String())
	}
	return urls
}

func TestThreeMembersAndAClient(t *testing.T) {
	const n = 3
	urls := free(t, 2*n)
	members := make(map[string]string)
	for i := range n {
		members[fmt.Sprint("m", i)] = urls[n+i]
	}
	stores := make([]*etcdkv.Store, n)
	var wg sync.WaitGroup
	for i := range n {
		opt := options(t.TempDir())
		opt.Name, opt.Tick = fmt.Sprint("m", i), 30*time.Millisecond
		opt.Network = &etcdkv.Network{ListenClients: urls[i], ListenPeers: urls[n+i], Members: members}
		wg.Go(func() {
			s, err := etcdkv.Open(t.Context(), opt)
			if err != nil {
				t.Error(err)
				return
			}
			stores[i] = s
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	remote, err := etcdkv.Connect(t.Context(), etcdkv.ConnectOptions{Endpoints: urls[:n]})
	if err != nil {
		t.Fatal(err)
	}
	w := remote.Watch(t.Context(), "k", 1)
	r, err := stores[0].Commit(t.Context(), catalog.Transaction{Then: []catalog.Op{{Key: "k", Value: []byte("v")}}})
	if err != nil {
		t.Fatal(err)
	}
	if ch := <-w.C(); ch.Revision != r.Revision {
		t.Errorf("the client's watch said %+v (%v), want revision %d", ch, w.Err(), r.Revision)
	}
	for i, s := range append(stores, remote) {
		if kv, found, _, err := s.Get(t.Context(), "k"); err != nil || !found || string(kv.Value) != "v" {
			t.Errorf("store %d: %+v, %v", i, kv, err)
		}
	}
	for _, s := range append([]*etcdkv.Store{remote}, stores...) {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The client's side passes the same suite as the member in process.
func TestConformanceOverTheNetwork(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kvtest.Harness {
		urls := free(t, 2)
		opt := options(t.TempDir())
		opt.Network = &etcdkv.Network{ListenClients: urls[0], ListenPeers: urls[1], Members: map[string]string{"varve": urls[1]}}
		server := open(t, opt)
		s, err := etcdkv.Connect(t.Context(), etcdkv.ConnectOptions{Endpoints: urls[:1]})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return kvtest.Harness{
			KV:      s,
			Compact: func(r catalog.Revision) { _ = server.Compact(t.Context(), r) },
			Lapse:   func(time.Duration) {},
		}
	})
}

func TestNobodyAnswers(t *testing.T) {
	_, err := etcdkv.Connect(t.Context(), etcdkv.ConnectOptions{Endpoints: free(t, 1), Timeout: 300 * time.Millisecond})
	if !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	urls := free(t, 2)
	taken, err := net.Listen("tcp", urls[0][len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	opt := options(t.TempDir())
	opt.Network = &etcdkv.Network{ListenClients: urls[0], ListenPeers: urls[1], Members: map[string]string{"varve": urls[1]}}
	if _, err := etcdkv.Open(t.Context(), opt); !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("a port that is taken: %v", err)
	}
}
