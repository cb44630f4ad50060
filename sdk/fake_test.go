package sdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/sdk/proto/varve/v1/varvev1connect"
)

// fake is a server of the contract over logs in memory, with faults.
type fake struct {
	varvev1connect.UnimplementedStreamServiceHandler
	varvev1connect.UnimplementedCatalogServiceHandler
	t    testing.TB
	addr string

	// Switches, read under mu.
	trusting bool                         // takes batches without looking for duplicates
	fault    func(batch.Info) fault       // for each batch of a session and each unary append
	opening  func() error                 // for each session that opens
	create   uint32                       // shards of streams that appends create; 0: none are
	unary    func(procedure string) error // before each other unary call
	silent   bool                         // no heartbeats
	headless bool                         // reads fail at the tail, as where no quorum can say what it is
	window   uint32                       // max_in_flight; 0: 32

	sessions, reads, calls, faults atomic.Int64
	mostInFlight                   atomic.Int64
	sentBytes                      atomic.Int64

	mu      sync.Mutex
	streams map[string]*fakeStream
	last    uint64 // incarnation
	changed chan struct{}
	server  *http.Server
	serving sync.WaitGroup
}

// fault is what happens to one batch.
type fault int

const (
	none        fault = iota
	breakBefore       // the connection breaks, nothing is stored
	breakAfter        // stored, the answer is lost
	notLeader         // refused, retryable
	throttled         // refused, retryable
	refused           // refused for good
	unsure            // stored, but the answer says: unknown, retryable
	unsureBad         // stored, but the answer says: unknown, for good
	stall             // stored, no answer until the session ends
)

type fakeStream struct {
	name        string
	incarnation uint64
	shards      []*fakeShard
}

type fakeShard struct {
	batches   []*varvev1.StoredBatch
	start     uint64
	next      uint64
	lineage   uint64
	token     string
	strict    bool
	producers map[int64]*fakeProducer
}

type fakeProducer struct {
	epoch  int16
	stored []fakeStored // at most 32
}

type fakeStored struct {
	info   batch.Info
	answer *varvev1.AppendResponse
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t, streams: map[string]*fakeStream{}, changed: make(chan struct{}), last: 100}
	f.start()
	t.Cleanup(f.kill)
	return f
}

// start serves at the address of before, if there was one.
func (f *fake) start() {
	address := f.addr
	if address == "" {
		address = "127.0.0.1:0"
	}
	var listener net.Listener
	var err error
	for range 100 { // the port may be held by a connection that is closing
		if listener, err = net.Listen("tcp", address); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.addr = listener.Addr().String()
	mux := http.NewServeMux()
	mux.Handle(varvev1connect.NewStreamServiceHandler(f, connect.WithReadMaxBytes(8<<20)))
	mux.Handle(varvev1connect.NewCatalogServiceHandler(f))
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: mux, Protocols: protocols}
	f.mu.Lock()
	f.server = s
	f.mu.Unlock()
	f.serving.Go(func() { _ = s.Serve(listener) })
}

// kill ends the server as a crash would: connections break, the logs stay.
func (f *fake) kill() {
	f.mu.Lock()
	s := f.server
	f.mu.Unlock()
	_ = s.Close()
	f.serving.Wait()
}

// set changes switches.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) make(name string, shards int) *fakeStream {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.makeLocked(name, shards)
}

func (f *fake) makeLocked(name string, shards int) *fakeStream {
	f.last++
	s := &fakeStream{name: name, incarnation: f.last}
	for range shards {
		s.shards = append(s.shards, &fakeShard{lineage: 7, producers: map[int64]*fakeProducer{}})
	}
	f.streams[name] = s
	return s
}

func (f *fake) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, name)
	f.wakeLocked()
}

// forget drops what a stream knows of producers, as expiry does.
func (f *fake) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.streams[name].shards {
		clear(s.producers)
	}
}

func (f *fake) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// values are the values that a shard holds, in order.
func (f *fake) values(name string, shard int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, b := range f.streams[name].shards[shard].batches {
		for r, err := range new(batch.Codec).Records(b.Data) {
			if err != nil {
				f.t.Error(err)
			}
			out = append(out, string(r.Value))
		}
	}
	return out
}

func detail(r varvev1.Reason, retryable bool, applied varvev1.Applied) *varvev1.ErrorDetail {
	return &varvev1.ErrorDetail{Reason: r, Retryable: retryable, Applied: applied, Message: "fake: " + strings.ToLower(r.String())}
}

func fail(d *varvev1.ErrorDetail) error {
	code := connect.CodeFailedPrecondition
	if d.Retryable {
		code = connect.CodeUnavailable
	}
	e := connect.NewError(code, errors.New(d.Message))
	if more, err := connect.NewErrorDetail(d); err == nil {
		e.AddDetail(more)
	}
	return e
}

const (
	no      = varvev1.Applied_APPLIED_NO
	unknown = varvev1.Applied_APPLIED_UNKNOWN
)

// find looks a shard up. mu is held.
func (f *fake) find(name string, incarnation *uint64, shard uint32) (*fakeStream, *fakeShard, *varvev1.ErrorDetail) {
	s := f.streams[name]
	switch {
	case incarnation != nil && (s == nil || s.incarnation != *incarnation):
		return nil, nil, detail(varvev1.Reason_REASON_STREAM_DELETED, false, no)
	case s == nil:
		return nil, nil, detail(varvev1.Reason_REASON_NOT_FOUND, false, no)
	case int(shard) >= len(s.shards):
		return nil, nil, detail(varvev1.Reason_REASON_INVALID_ARGUMENT, false, no)
	}
	return s, s.shards[shard], nil
}

// store appends one batch as the design says: duplicate, then fence token, then
// expected offset. mu is held.
func (f *fake) store(s *fakeStream, number uint32, data []byte, token *string, expected *uint64) (*varvev1.AppendResponse, *varvev1.ErrorDetail) {
	shard := s.shards[number]
	info, err := new(batch.Codec).Validate(data, 0)
	if err != nil {
		d := detail(varvev1.Reason_REASON_INVALID_ARGUMENT, false, no)
		d.Message = err.Error()
		return nil, d
	}
	if p := info.Producer; p.Idempotent() && !f.trusting {
		known := shard.producers[p.ID]
		if known != nil && p.Epoch < known.epoch {
			return nil, detail(varvev1.Reason_REASON_PRODUCER_FENCED, false, no)
		}
		if known == nil || p.Epoch > known.epoch {
			if p.Sequence != 0 {
				return nil, detail(varvev1.Reason_REASON_UNKNOWN_PRODUCER, false, unknown)
			}
		} else {
			for _, old := range known.stored {
				if old.info.Producer.Sequence == p.Sequence && old.info.Count == info.Count {
					if old.info.CRC != info.CRC {
						f.t.Errorf("sequence %d was used for other content", p.Sequence)
						return nil, detail(varvev1.Reason_REASON_SEQUENCE_GAP, false, no)
					}
					again := cloneOf(old.answer)
					again.Duplicate = true
					return again, nil
				}
			}
			if last := known.stored[len(known.stored)-1].info; batch.NextSequence(last.Producer.Sequence, last.Count) != p.Sequence {
				return nil, detail(varvev1.Reason_REASON_SEQUENCE_GAP, false, no)
			}
		}
	}
	if shard.token != "" && (token == nil && shard.strict || token != nil && *token != shard.token) {
		return nil, detail(varvev1.Reason_REASON_FENCE_TOKEN, false, no)
	}
	if expected != nil && *expected != shard.next {
		d := detail(varvev1.Reason_REASON_CONDITION_FAILED, false, no)
		d.Figures = &varvev1.ErrorDetail_ConditionFailed{ConditionFailed: &varvev1.ConditionFailed{Expected: *expected, Actual: shard.next}}
		return nil, d
	}
	data = slices.Clone(data)
	batch.SetBase(data, int64(shard.next), 1)
	at := timestamppb.Now()
	shard.batches = append(shard.batches, &varvev1.StoredBatch{BaseOffset: shard.next, Count: uint32(info.Count), AppendTime: at, Data: data})
	answer := &varvev1.AppendResponse{
		FirstOffset: shard.next, NextOffset: shard.next + uint64(info.Count), AppendTime: at,
		Tail: shard.next + uint64(info.Count), Incarnation: s.incarnation, Lineage: shard.lineage, Shard: number,
	}
	shard.next = answer.NextOffset
	if p := info.Producer; p.Idempotent() {
		known := shard.producers[p.ID]
		if known == nil || known.epoch != p.Epoch {
			known = &fakeProducer{epoch: p.Epoch}
			shard.producers[p.ID] = known
		}
		known.stored = append(known.stored, fakeStored{info, answer})
		if len(known.stored) > maxInFlight {
			known.stored = known.stored[1:]
		}
	}
	f.wakeLocked()
	return answer, nil
}

func cloneOf(r *varvev1.AppendResponse) *varvev1.AppendResponse {
	return &varvev1.AppendResponse{
		FirstOffset: r.FirstOffset, NextOffset: r.NextOffset, AppendTime: r.AppendTime, Tail: r.Tail,
		Incarnation: r.Incarnation, Lineage: r.Lineage, Shard: r.Shard,
	}
}

var errBroken = connect.NewError(connect.CodeUnavailable, errors.New("fake: connection lost"))

// take stores a batch or does what the fault says. A nil answer and a nil detail
// mean that nothing is ever said.
func (f *fake) take(name string, incarnation *uint64, shard uint32, data []byte, token *string, expected *uint64) (*varvev1.AppendResponse, *varvev1.ErrorDetail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := batch.Check(data)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	what := none
	if f.fault != nil {
		what = f.fault(info)
	}
	if what != none {
		f.faults.Add(1)
	}
	switch what {
	case breakBefore:
		return nil, nil, errBroken
	case notLeader:
		return nil, detail(varvev1.Reason_REASON_NOT_LEADER, true, no), nil
	case throttled:
		d := detail(varvev1.Reason_REASON_THROTTLED, true, no)
		d.Figures = &varvev1.ErrorDetail_Throttled{Throttled: &varvev1.Throttled{RetryAfter: durationpb.New(time.Millisecond)}}
		return nil, d, nil
	case refused:
		return nil, detail(varvev1.Reason_REASON_INVALID_ARGUMENT, false, no), nil
	}
	s, _, d := f.find(name, incarnation, shard)
	if d != nil {
		return nil, d, nil
	}
	answer, d := f.store(s, shard, data, token, expected)
	if d != nil {
		return nil, d, nil
	}
	switch what {
	case breakAfter:
		return nil, nil, errBroken
	case unsure:
		return nil, detail(varvev1.Reason_REASON_UNAVAILABLE, true, unknown), nil
	case unsureBad:
		return nil, detail(varvev1.Reason_REASON_INTERNAL, false, unknown), nil
	case stall:
		return nil, nil, nil
	}
	return answer, nil, nil
}

func (f *fake) AppendSession(ctx context.Context, stream *connect.BidiStream[varvev1.AppendSessionRequest, varvev1.AppendSessionResponse]) error {
	f.sessions.Add(1)
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	f.mu.Lock()
	if f.opening != nil {
		if err := f.opening(); err != nil {
			f.mu.Unlock()
			return err
		}
	}
	if f.streams[open.Stream] == nil && open.Incarnation == nil && f.create > 0 {
		f.makeLocked(open.Stream, int(f.create))
	}
	s, shard, d := f.find(open.Stream, open.Incarnation, open.Shard)
	window := f.window
	f.mu.Unlock()
	if d != nil {
		return fail(d)
	}
	if window == 0 {
		window = maxInFlight
	}
	if err := stream.Send(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Opened{Opened: &varvev1.AppendSessionOpened{
		Incarnation: s.incarnation, Lineage: shard.lineage, Shards: uint32(len(s.shards)), MaxInFlight: window,
	}}}); err != nil {
		return err
	}
	requests := make(chan *varvev1.AppendSessionRequest, maxInFlight)
	var inFlight atomic.Int64
	go func() { // ends with the handler, which ends Receive
		defer close(requests)
		for {
			r, err := stream.Receive()
			if err != nil {
				return
			}
			n := inFlight.Add(1)
			for most := f.mostInFlight.Load(); n > most && !f.mostInFlight.CompareAndSwap(most, n); most = f.mostInFlight.Load() {
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	for r := range requests {
		answer, d, err := f.take(open.Stream, &s.incarnation, open.Shard, r.Batch, open.FenceToken, r.ExpectedOffset)
		inFlight.Add(-1)
		switch {
		case err != nil:
			return err
		case d != nil:
			err = stream.Send(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Error{Error: d}})
		case answer != nil:
			err = stream.Send(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Result{Result: answer}})
		default:
			<-ctx.Done()
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Append(ctx context.Context, r *varvev1.AppendRequest) (*varvev1.AppendResponse, error) {
	f.calls.Add(1)
	data, shard := r.Batch, r.GetShard()
	if data == nil {
		var records []batch.Record
		for _, w := range r.Records {
			rec := batch.Record{Key: w.Key, Value: w.Value, Time: w.CreateTime.AsTime().UnixMilli()}
			for _, h := range w.Headers {
				rec.Headers = append(rec.Headers, batch.Header{Key: h.Key, Value: h.Value})
			}
			records = append(records, rec)
		}
		var err error
		if data, err = new(batch.Codec).Encode(records, batch.None, batch.NoProducer()); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	answer, d, err := f.take(r.Stream, r.Incarnation, shard, data, r.FenceToken, r.ExpectedOffset)
	switch {
	case err != nil:
		return nil, err
	case d != nil:
		return nil, fail(d)
	case answer == nil:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answer, nil
}

func (f *fake) before(procedure string) error {
	f.calls.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unary != nil {
		return f.unary(procedure)
	}
	return nil
}

func (f *fake) CheckTail(_ context.Context, r *varvev1.CheckTailRequest) (*varvev1.CheckTailResponse, error) {
	if err := f.before("CheckTail"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, shard, d := f.find(r.Stream, r.Incarnation, r.Shard)
	if d != nil {
		return nil, fail(d)
	}
	return &varvev1.CheckTailResponse{
		StartOffset: shard.start, Tail: shard.next, Incarnation: s.incarnation, Lineage: shard.lineage, Shards: uint32(len(s.shards)),
	}, nil
}

func (f *fake) Trim(_ context.Context, r *varvev1.TrimRequest) (*varvev1.TrimResponse, error) {
	if err := f.before("Trim"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, shard, d := f.find(r.Stream, r.Incarnation, r.Shard)
	if d != nil {
		return nil, fail(d)
	}
	shard.start = max(shard.start, min(r.Before, shard.next))
	return &varvev1.TrimResponse{StartOffset: shard.start, Tail: shard.next, Incarnation: s.incarnation, Lineage: shard.lineage}, nil
}

func (f *fake) Fence(_ context.Context, r *varvev1.FenceRequest) (*varvev1.FenceResponse, error) {
	f.mu.Lock()
	s, shard, d := f.find(r.Stream, r.Incarnation, r.Shard)
	if d != nil {
		f.mu.Unlock()
		return nil, fail(d)
	}
	shard.token, shard.strict = r.Token, r.Strict
	out := &varvev1.FenceResponse{Tail: shard.next, Incarnation: s.incarnation, Lineage: shard.lineage}
	f.mu.Unlock()
	if err := f.before("Fence"); err != nil { // done, but the answer is lost
		return nil, err
	}
	return out, nil
}

func (f *fake) GetStream(_ context.Context, r *varvev1.GetStreamRequest) (*varvev1.GetStreamResponse, error) {
	if err := f.before("GetStream"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, _, d := f.find(r.Stream, nil, 0)
	if d != nil {
		return nil, fail(d)
	}
	return &varvev1.GetStreamResponse{Stream: &varvev1.Stream{Name: s.name, Incarnation: s.incarnation, Shards: uint32(len(s.shards))}}, nil
}

func (f *fake) DeleteStream(_ context.Context, r *varvev1.DeleteStreamRequest) (*varvev1.DeleteStreamResponse, error) {
	f.mu.Lock()
	s, _, d := f.find(r.Stream, r.Incarnation, 0)
	if d != nil {
		f.mu.Unlock()
		return nil, fail(d)
	}
	delete(f.streams, r.Stream)
	f.mu.Unlock()
	if err := f.before("DeleteStream"); err != nil { // done, but the answer is lost
		return nil, err
	}
	return &varvev1.DeleteStreamResponse{Incarnation: s.incarnation}, nil
}

func (f *fake) ListStreams(_ context.Context, r *varvev1.ListStreamsRequest) (*varvev1.ListStreamsResponse, error) {
	if err := f.before("ListStreams"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.streams {
		if strings.HasPrefix(name, r.Namespace+"/"+r.Prefix) && name > r.PageToken {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := &varvev1.ListStreamsResponse{}
	for i, name := range names {
		if i == 2 { // small pages
			out.NextPageToken = names[1]
			break
		}
		out.Streams = append(out.Streams, &varvev1.Stream{Name: name})
	}
	return out, nil
}

// ReadSession follows the contract over a shard's batches.
func (f *fake) ReadSession(ctx context.Context, request *varvev1.ReadSessionRequest, out *connect.ServerStream[varvev1.ReadSessionResponse]) error {
	f.reads.Add(1)
	r := request.Read
	f.mu.Lock()
	s, shard, d := f.find(r.Stream, r.Incarnation, r.Shard)
	if d != nil {
		f.mu.Unlock()
		return fail(d)
	}
	if r.Lineage != nil && *r.Lineage != shard.lineage {
		f.mu.Unlock()
		return fail(detail(varvev1.Reason_REASON_REWOUND, false, no))
	}
	next := shard.next
	switch at := r.Start.(type) {
	case *varvev1.ReadRequest_Offset:
		next = at.Offset
	case *varvev1.ReadRequest_FromStart:
		next = shard.start
	case *varvev1.ReadRequest_BeforeTail:
		next = max(shard.start, shard.next-min(shard.next, at.BeforeTail))
	case *varvev1.ReadRequest_Time:
		for _, b := range slices.Backward(shard.batches) {
			if b.AppendTime.AsTime().Before(at.Time.AsTime()) {
				break
			}
			next = b.BaseOffset
		}
	}
	if next < shard.start || next > shard.next {
		if !r.Clamp {
			e := detail(varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE, false, no)
			e.Figures = &varvev1.ErrorDetail_OffsetOutOfRange{OffsetOutOfRange: &varvev1.OffsetOutOfRange{Start: shard.start, End: shard.next, Asked: next}}
			f.mu.Unlock()
			return fail(e)
		}
		next = min(max(next, shard.start), shard.next)
	}
	f.mu.Unlock()
	var count, bytes uint64
	beat := time.NewTicker(request.Heartbeat.AsDuration())
	defer beat.Stop()
	waited := time.Now()
	for first, heartbeat := true, false; ; first = false {
		f.mu.Lock()
		if f.streams[r.Stream] != s {
			f.mu.Unlock()
			return fail(detail(varvev1.Reason_REASON_STREAM_DELETED, false, no))
		}
		if next < shard.start {
			f.mu.Unlock()
			return fail(detail(varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE, false, no))
		}
		page := &varvev1.ReadResponse{
			Offset: next, StartOffset: shard.start, Tail: shard.next, Incarnation: s.incarnation, Lineage: shard.lineage,
			Shard: r.Shard, Shards: uint32(len(s.shards)),
		}
		stop, size := false, 0
		for _, b := range shard.batches {
			end := b.BaseOffset + uint64(b.Count)
			if end <= next || stop || size > 1<<20 {
				continue
			}
			if r.MaxRecords != nil && count >= *r.MaxRecords || r.MaxBytes != nil && bytes >= *r.MaxBytes ||
				r.Until != nil && !b.AppendTime.AsTime().Before(r.Until.AsTime()) {
				stop = true
				continue
			}
			count, bytes, size = count+end-max(next, b.BaseOffset), bytes+uint64(len(b.Data)), size+len(b.Data)
			page.Batches = append(page.Batches, b)
			next = end
		}
		page.NextOffset = next
		changed, silent, headless := f.changed, f.silent, f.headless
		f.mu.Unlock()
		if first || len(page.Batches) > 0 || heartbeat && !silent {
			if err := out.Send(&varvev1.ReadSessionResponse{Page: page, Heartbeat: heartbeat && len(page.Batches) == 0}); err != nil {
				return err
			}
			f.sentBytes.Add(int64(size))
		}
		heartbeat = false
		switch {
		case headless && len(page.Batches) == 0:
			return fail(detail(varvev1.Reason_REASON_NO_QUORUM, true, no))
		case stop:
			return nil
		case len(page.Batches) > 0:
			waited = time.Now()
			continue
		case !r.Follow && time.Since(waited) >= r.Wait.AsDuration():
			return nil
		}
		wait := make(<-chan time.Time)
		if !r.Follow {
			wait = time.After(r.Wait.AsDuration() - time.Since(waited))
		}
		select {
		case <-changed:
		case <-beat.C:
			heartbeat = true
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// quick are options with short pauses.
func quick() Options {
	return Options{
		MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, Heartbeat: 50 * time.Millisecond,
		ConnectTimeout: 5 * time.Second, Ping: 5 * time.Second,
	}
}

func dial(t testing.TB, f *fake, o Options) *Client {
	t.Helper()
	c, err := Dial(f.addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func value(i int) string { return fmt.Sprintf("record %d", i) }

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	t.Cleanup(cancel)
	return ctx
}
