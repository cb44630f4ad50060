package servicetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
)

// Patience bounds every wait of a test: only a failing one comes near it.
const Patience = 30 * time.Second

// Context is one that ends after [Patience].
func (n *Node) Context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	n.T.Cleanup(cancel)
	return ctx
}

// Create makes a stream of one shard, its namespace too, and returns the shard.
func (n *Node) Create(name string) meta.ShardID {
	n.T.Helper()
	return n.CreateWith(name, catalog.StreamConfig{})
}

// CreateWith is Create with settings.
func (n *Node) CreateWith(name string, cfg catalog.StreamConfig) meta.ShardID {
	n.T.Helper()
	s, err := meta.ParseStreamName(name)
	if err != nil {
		n.T.Fatal(err)
	}
	ctx := n.Context()
	if _, err := n.Catalog.CreateNamespace(ctx, s.Namespace, catalog.NamespaceConfig{}, ""); err != nil && !errors.Is(err, meta.ErrExists) {
		n.T.Fatal(err)
	}
	row, _, err := n.Catalog.Create(ctx, catalog.CreateStream{Name: s, Shards: 1, Config: cfg})
	if err != nil {
		n.T.Fatal(err)
	}
	return meta.ShardID{Stream: s, Incarnation: row.Incarnation}
}

// Delete removes a stream.
func (n *Node) Delete(id meta.ShardID) {
	n.T.Helper()
	if _, _, err := n.Broker.Delete(n.Context(), id.Stream, id.Incarnation); err != nil {
		n.T.Fatal(err)
	}
}

var codec batch.Codec

// Batch encodes values as one batch.
func Batch(p batch.Producer, values ...string) []byte {
	records := make([]batch.Record, len(values))
	for i, v := range values {
		records[i] = batch.Record{Value: []byte(v), Time: 1}
	}
	b, err := codec.Encode(records, batch.None, p)
	if err != nil {
		panic(err)
	}
	return b
}

// Send appends a batch and waits for its answer.
func (n *Node) Send(ctx context.Context, id meta.ShardID, a broker.Append) (broker.Result, error) {
	return SendTo(ctx, n.Broker, id, a)
}

// SendTo is [Node.Send] for those who hold on to one process's broker.
func SendTo(ctx context.Context, b *broker.Broker, id meta.ShardID, a broker.Append) (broker.Result, error) {
	type outcome struct {
		r   broker.Result
		err error
	}
	done := make(chan outcome, 1)
	if err := b.Append(ctx, id, a, func(r broker.Result, err error) { done <- outcome{r, err} }); err != nil {
		return broker.Result{}, err
	}
	select {
	case o := <-done:
		return o.r, o.err
	case <-ctx.Done():
		return broker.Result{}, &broker.Failure{Err: fmt.Errorf("no answer: %w", ctx.Err()), Unknown: true}
	}
}

// Append stores values as one batch, or fails the test.
func (n *Node) Append(id meta.ShardID, values ...string) broker.Result {
	n.T.Helper()
	return n.append(id, replica.Quorum, values)
}

// Archive is Append that is answered once the bucket has the records.
func (n *Node) Archive(id meta.ShardID, values ...string) broker.Result {
	n.T.Helper()
	return n.append(id, replica.Archive, values)
}

func (n *Node) append(id meta.ShardID, level replica.Level, values []string) broker.Result {
	n.T.Helper()
	r, err := n.Send(n.Context(), id, broker.Append{Batch: Batch(batch.NoProducer(), values...), Level: level})
	if err != nil {
		n.T.Fatalf("append %v: %v", values, err)
	}
	return r
}

// Read returns the values from an offset to the tail, or fails the test. It checks
// that offsets have no gap and that append times never go back.
func (n *Node) Read(id meta.ShardID, from meta.Offset) []string {
	n.T.Helper()
	values, err := n.TryRead(n.Context(), id, from)
	if err != nil {
		n.T.Fatalf("read %s from %d: %v", id, from, err)
	}
	return values
}

// TryRead is Read that returns its error.
func (n *Node) TryRead(ctx context.Context, id meta.ShardID, from meta.Offset) ([]string, error) {
	r, err := n.Broker.Reader(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var values []string
	var last meta.Micros
	for {
		p, err := r.Read(ctx, from, 64<<10)
		if err != nil {
			return values, err
		}
		if len(p.Entries) == 0 {
			return values, nil
		}
		for _, e := range p.Entries {
			if e.Offset > from || e.Time < last {
				return values, fmt.Errorf("entry LSN %d: offset %d, time %d; want at most offset %d, at least time %d", e.LSN, e.Offset, e.Time, from, last)
			}
			last = e.Time
			at := e.Offset
			for rec, err := range codec.Records(e.Payload) {
				if err != nil {
					return values, err
				}
				if at >= from {
					values = append(values, string(rec.Value))
				}
				at++
			}
			from = at
		}
	}
}

// Eventually waits until ok holds, looking every few milliseconds.
func (n *Node) Eventually(what string, ok func() bool) {
	n.T.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.T.Fatalf("never came: %s", what)
		}
	}
}

// Keys lists the bucket's objects below a prefix.
func (n *Node) Keys(prefix string) []string {
	n.T.Helper()
	var keys []string
	for info, err := range n.Bucket.List(n.Context(), prefix, "") {
		if err != nil {
			n.T.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}
