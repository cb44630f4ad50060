package catalog

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: stored bytes changed; that needs a format level:\n%s", file, d)
	}
}

var (
	streamA = meta.StreamName{Namespace: "logs", Name: "app/a"}
	memberA = meta.Member{Broker: "b1", Storage: meta.StorageID{0xaa, 1}}
	memberB = meta.Member{Broker: "b2", Storage: meta.StorageID{0xbb, 2}}
	shardA  = meta.ShardID{Stream: streamA, Incarnation: 0x645f1a2b3c4d5, Shard: 1}
)

// sampleExport has two of everything that can be two.
func sampleExport() Export {
	cfg := StreamConfig{SegmentBytes: 1 << 20, SegmentAge: time.Minute, MaxRecordBytes: 2048, ProducersMax: 5}
	other := meta.StreamName{Namespace: "logs", Name: "b<&>"[:1]}
	return Export{
		Revision: 77,
		Cluster:  Cluster{ID: meta.ClusterID{1, 2, 3}, Generation: 3, Floor: 9, Level: 1},
		Features: []string{"merge", "zip"},
		Namespaces: []NamespaceRow{
			{Name: "empty", Created: 1, Request: "r"},
			{Name: "logs", Config: NamespaceConfig{CreateOnAppend: true, CreateOnRead: true, Shards: 2, Defaults: cfg}, Created: 2, Request: "a<b>&c"},
		},
		Streams: []StreamRow{
			{Name: streamA, Incarnation: shardA.Incarnation, Shards: 3, Config: cfg, Created: 5, Request: "r1"},
			{Name: other, Incarnation: 7, Shards: 1, Created: 6},
		},
		Tombstones: []meta.Tombstone{{Stream: streamA, Through: 4}, {Stream: other, Through: 6}},
		Shards: []ShardRow{
			{ID: meta.ShardID{Stream: streamA, Incarnation: shardA.Incarnation}, State: ShardCreated, Lineage: meta.NewLineage(3, 0)},
			{
				ID: shardA, State: ShardServed, Lineage: meta.NewLineage(3, 1), Epoch: 4, Base: Base{Through: 10, Lineage: meta.NewLineage(3, 0), Mark: 11},
				Committed: 12, Leader: memberB, Boot: 1 << 63, Members: []meta.Member{memberA, memberB}, Moves: 2,
			},
			{
				ID: meta.ShardID{Stream: streamA, Incarnation: shardA.Incarnation, Shard: 2}, State: ShardHibernating, Lineage: meta.NewLineage(3, 0), Epoch: 4,
				Base: Base{Through: 10, Lineage: meta.NewLineage(3, 0), Mark: 11}, Committed: 12, End: 12, NextExpiry: 99,
			},
		},
	}
}

// Rows: U3. Golden files from the first level.
func TestU3_GoldenRows(t *testing.T) {
	golden(t, "export-1.golden", sampleExport().Encode())
	golden(t, "broker-1.golden", encodeBroker(BrokerRow{
		ID: "b1", Addresses: []string{"h1:1", "h2:2"}, Storage: memberA.Storage, Start: 3, Boot: 4, Zone: "z", Version: "v",
		Level: 1, Features: []string{"zip", "merge"}, Capacity: 5, Draining: true,
	}))
	golden(t, "copy-1.golden", encodeCopy(CopyRow{Storage: memberA.Storage, Broker: "b1", Start: 3, Boot: 4, Synced: 5}))
}

func TestExportRoundTrip(t *testing.T) {
	want := sampleExport()
	got, err := DecodeExport(want.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	b := want.Encode()
	for i := range b {
		bad := append([]byte(nil), b...)
		bad[i] ^= 0x20
		if _, err := DecodeExport(bad); err == nil {
			t.Fatalf("byte %d flipped: not noticed", i)
		}
	}
	for i := range b {
		if _, err := DecodeExport(b[:i]); err == nil {
			t.Fatalf("cut at %d: not noticed", i)
		}
	}
}

func TestRowsAreReadStrictly(t *testing.T) {
	key := shardKey(shardA)
	row := string(encodeShard(sampleExport().Shards[1]))
	for name, bad := range map[string]string{
		"unknown field":   strings.Replace(row, `"level":1`, `"level":1,"extra":1`, 1),
		"other order":     strings.Replace(row, `"level":1,"shard"`, `"shard":"x","level":1,"shard"`, 1),
		"white space":     row + " ",
		"trailing":        row + "{}",
		"empty":           "",
		"null":            "null",
		"not JSON":        "x",
		"no level":        strings.Replace(row, `"level":1,`, ``, 1),
		"leader outside":  strings.Replace(row, `"leader":{"broker":"b2"`, `"leader":{"broker":"b3"`, 1),
		"state":           strings.Replace(row, `"served"`, `"serving"`, 1),
		"another shard":   strings.Replace(row, "app~a", "app~b", 1),
		"epoch 0":         strings.Replace(row, `"epoch":4`, `"epoch":0`, 1),
		"storage id":      strings.Replace(row, `"aa01`, `"AA01`, 1),
		"too long":        strings.Repeat(" ", MaxRow) + row,
		"negative number": strings.Replace(row, `"committed":12`, `"committed":-1`, 1),
	} {
		if bad == row {
			t.Fatalf("%s: the row was not changed", name)
		}
		_, err := decodeShard(KeyValue{Key: key, Value: []byte(bad)})
		if !errors.Is(err, meta.ErrCorrupt) && !errors.Is(err, meta.ErrFormatLevel) {
			t.Errorf("%s: %v", name, err)
		} else if name != "storage id" && !strings.Contains(err.Error(), key) {
			t.Errorf("%s: the error does not name the key: %v", name, err)
		}
	}
	higher := strings.Replace(row, `"level":1`, fmt.Sprintf(`"level":%d`, Level+1), 1)
	if _, err := decodeShard(KeyValue{Key: key, Value: []byte(higher)}); !errors.Is(err, meta.ErrFormatLevel) {
		t.Errorf("a higher level: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	e := sampleExport()
	f.Add(e.Encode())
	for _, s := range e.Shards {
		f.Add(encodeShard(s))
	}
	f.Add(EncodeStream(e.Streams[0]))
	f.Add(encodeTombstone(e.Tombstones[0]))
	f.Add(encodeNamespace(e.Namespaces[1]))
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(what string, err error, encode func() []byte) {
			if err == nil && string(encode()) != string(b) {
				t.Errorf("%s: encode(decode(x)) is not x", what)
			}
		}
		s, err := decodeShard(KeyValue{Key: shardKey(shardA), Value: b})
		again("shard", err, func() []byte { return encodeShard(s) })
		r, err := DecodeStream(b)
		again("stream", err, func() []byte { return EncodeStream(r) })
		x, err := DecodeExport(b)
		again("export", err, x.Encode)
		c, err := decodeCopy(KeyValue{Key: copyKey(memberA.Storage), Value: b})
		again("copy", err, func() []byte { return encodeCopy(c) })
		k, err := decodeBroker(KeyValue{Key: brokerKey("b1"), Value: b})
		again("broker", err, func() []byte { return encodeBroker(k) })
		n, err := decodeNamespace(KeyValue{Key: namespaceKey("logs"), Value: b})
		again("namespace", err, func() []byte { return encodeNamespace(n) })
	})
}
