package tiering

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
	"github.com/varve-io/varve/tiering/bucket/mem"
)

func claimant(t *testing.T, b bucket.Bucket, id byte) *Store {
	t.Helper()
	s, err := New(Options{Bucket: b, Cluster: meta.ClusterID{id}, RetryMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestClaimAndRestart(t *testing.T) {
	b := fault.New(mem.New("c"))
	one := claimant(t, b, 1)
	if err := one.CheckClaim(t.Context()); !errors.Is(err, meta.ErrForeign) || one.Generation() != 0 {
		t.Fatalf("a check before a claim: %v", err)
	}
	got, err := one.Claim(t.Context(), ClaimOptions{Level: 1})
	if err != nil || !got.Fresh || got.Generation != 1 || got.Wait != 0 || got.Window != 5*time.Second {
		t.Fatalf("%+v %v", got, err)
	}
	again := claimant(t, b, 1)
	if got, err := again.Claim(t.Context(), ClaimOptions{Level: 7}); err != nil || got.Fresh || got.Generation != 1 || got.Level != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	if err := again.CheckClaim(t.Context()); err != nil || again.Generation() != 1 {
		t.Fatal(err)
	}
	_, err = claimant(t, b, 2).Claim(t.Context(), ClaimOptions{})
	if !errors.Is(err, meta.ErrForeign) || !strings.Contains(err.Error(), meta.ClusterID{1}.String()) {
		t.Fatalf("a foreign claim: %v", err)
	}
}

// The claim's part of what two clusters on one prefix need.
func TestTakeover(t *testing.T) {
	b := fault.New(mem.New("c"))
	lost := 0
	old := claimant(t, b, 1)
	old.opt.Events.ClaimLost = func(error) { lost++ }
	if _, err := old.Claim(t.Context(), ClaimOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := old.CheckClaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	heir := claimant(t, b, 2)
	got, err := heir.Claim(t.Context(), ClaimOptions{Takeover: true})
	if err != nil || got.Generation != 2 || len(got.Previous) != 1 || got.Wait != 5*time.Second {
		t.Fatalf("%+v %v", got, err)
	}
	for range 2 {
		if err := old.CheckClaim(t.Context()); !errors.Is(err, meta.ErrForeign) || !strings.Contains(err.Error(), meta.ClusterID{2}.String()) {
			t.Fatalf("%v", err)
		}
	}
	if _, err := old.Claim(t.Context(), ClaimOptions{}); !errors.Is(err, meta.ErrForeign) || lost != 2 {
		t.Fatalf("%v, told %d times", err, lost)
	}
	if got, err := heir.Claim(t.Context(), ClaimOptions{Takeover: true}); err != nil || got.Fresh {
		t.Fatalf("an interrupted takeover is taken up: %+v %v", got, err)
	}
}

func TestRelease(t *testing.T) {
	b := fault.New(mem.New("c"))
	one := claimant(t, b, 1)
	if _, err := one.Claim(t.Context(), ClaimOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := one.CheckClaim(t.Context()); !errors.Is(err, meta.ErrForeign) {
		t.Fatal(err)
	}
	if got, err := claimant(t, b, 2).Claim(t.Context(), ClaimOptions{}); err != nil || got.Generation != 3 {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := one.Claim(t.Context(), ClaimOptions{}); !errors.Is(err, meta.ErrForeign) {
		t.Fatal(err)
	}
}

// Two claims of one generation: nobody has it, for good; the next generation is free.
func TestTwoClaimsOfOneGeneration(t *testing.T) {
	b := fault.New(mem.New("c"))
	hold := b.Hold(fault.Fault{Op: fault.Put, Key: claimFolder})
	errs := make(chan error, 2)
	stores := []*Store{claimant(t, b, 1), claimant(t, b, 2)}
	for _, s := range stores {
		go func() {
			_, err := s.Claim(t.Context(), ClaimOptions{})
			errs <- err
		}()
	}
	<-hold.Arrived()
	<-hold.Arrived() // both have seen an empty prefix
	hold.Release()
	won := 0
	for range 2 {
		if err := <-errs; err == nil {
			won++ // it listed before the other one's claim was there
		} else if !errors.Is(err, meta.ErrForeign) {
			t.Fatal(err)
		}
	}
	for _, s := range stores {
		if err := s.CheckClaim(t.Context()); !errors.Is(err, meta.ErrForeign) {
			t.Fatalf("a contested claim stands: %v", err)
		}
	}
	if won > 1 {
		t.Fatal("both claims were believed")
	}
	if got, err := stores[1].Claim(t.Context(), ClaimOptions{}); err != nil || got.Generation != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := stores[0].Claim(t.Context(), ClaimOptions{}); !errors.Is(err, meta.ErrForeign) {
		t.Fatal(err)
	}
}

// B72, B73: a claim of which the answer was lost is found to be ours.
func TestClaimWithALostAnswer(t *testing.T) {
	for _, kind := range []error{bucket.ErrUnknown, bucket.ErrUnavailable, bucket.ErrExists} {
		b := fault.New(mem.New("c"))
		b.Inject(fault.Fault{Op: fault.Put, Times: 2, After: kind})
		if got, err := claimant(t, b, 1).Claim(t.Context(), ClaimOptions{}); err != nil || got.Generation != 1 {
			t.Fatalf("%v: %+v %v", kind, got, err)
		}
	}
}

func TestStrangeClaims(t *testing.T) {
	b := fault.New(mem.New("c"))
	if _, err := claimant(t, b, 1).Claim(t.Context(), ClaimOptions{}); err != nil {
		t.Fatal(err)
	}
	key := claimKey(1, meta.ClusterID{1})
	data, _, _ := b.Load(t.Context(), key, 1000)
	if _, err := b.Put(t.Context(), claimKey(2, meta.ClusterID{1}), bucket.Bytes(data), bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var d *DamagedError
	if _, err := claimant(t, b, 1).Claim(t.Context(), ClaimOptions{}); !errors.As(err, &d) {
		t.Fatalf("a claim that says something else than its key: %v", err)
	}
	if _, err := b.Put(t.Context(), claimFolder+"readme.txt", bucket.Body{}, bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claimant(t, b, 1).Claim(t.Context(), ClaimOptions{Takeover: true}); err == nil {
		t.Fatal("claimed over what it can't read")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{}, {Bucket: mem.New("x")}, {Bucket: mem.New("x"), Cluster: cluster, Downloads: -1}, {Bucket: mem.New("x"), Cluster: cluster, FetchFor: -1}} {
		if _, err := New(o); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A machine that slept, or a clock that was set back, never makes a check of the claim
// look younger than it is.
func TestCheckAgesBySleepAndByWall(t *testing.T) {
	checked := time.Now()
	shifted := func(wall, monotonic time.Duration) time.Time {
		now := checked.Add(wall)
		ext := (*[2]int64)(unsafe.Pointer(&now)) // wall and flags | monotonic reading
		ext[1] += int64(monotonic - wall)
		return now
	}
	for _, c := range []struct{ wall, monotonic, want time.Duration }{
		{time.Second, time.Second, time.Second},
		{time.Hour, time.Second, time.Hour},            // asleep in between
		{-time.Hour, 3 * time.Second, 3 * time.Second}, // set back
	} {
		if got := since(checked, shifted(c.wall, c.monotonic)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
