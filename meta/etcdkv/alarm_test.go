package etcdkv

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// etcd's own alarm makes it read-only until somebody clears it: maintenance does.
// Public failure report B125.
func TestNoSpaceAlarmIsCleared(t *testing.T) {
	s, err := Open(t.Context(), Options{
		Dir: t.TempDir(), NoSync: true, SegmentBytes: 256 << 10, Tick: 10 * time.Millisecond, MaintainEvery: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	put := catalog.Transaction{Then: []catalog.Op{{Key: "k", Value: []byte("v")}}}
	if _, err := s.server.Alarm(ctx, &pb.AlarmRequest{MemberID: uint64(s.server.MemberID()), Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, put); !errors.Is(err, meta.ErrExhausted) {
		t.Fatalf("%v, want ErrExhausted", err)
	}
	// That refusal has asked for maintenance as well; both may run.
	if err := s.Maintain(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, put); err != nil {
		t.Errorf("after maintenance: %v", err)
	}
}

// A message by which etcd would end the process ends only the calls.
func TestFatalMessageFailsTheStore(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), NoSync: true, SegmentBytes: 256 << 10, Tick: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	watch := s.Watch(t.Context(), "", 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.server.Logger().Fatal("failed to save state and entries")
		t.Error("the goroutine went on")
	}()
	<-ended
	<-s.Failed()
	if err := s.Err(); !errors.Is(err, meta.ErrPoisoned) {
		t.Errorf("%v, want ErrPoisoned", err)
	}
	for range watch.C() {
	}
	if err := watch.Err(); !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("the watch ended with %v", err)
	}
	if _, _, _, err := s.Get(t.Context(), "k"); !errors.Is(err, meta.ErrPoisoned) || !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	if err := s.Close(); !errors.Is(err, meta.ErrPoisoned) {
		t.Errorf("close: %v", err)
	}
}
