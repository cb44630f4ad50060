package etcdkv_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
)

const keysWritten = 150

func value(i int) string { return fmt.Sprintf("value %d %s", i, strings.Repeat("x", 200)) }

// fill writes a state with puts, overwrites, deletes and a compaction.
func fill(t *testing.T, dir string) {
	s, err := etcdkv.Open(t.Context(), options(dir))
	if err != nil {
		t.Fatal(err)
	}
	var last catalog.Revision
	for i := range keysWritten {
		key := fmt.Sprintf("k/%04d", i)
		for _, v := range []string{"old", value(i)} {
			r, err := s.Commit(t.Context(), catalog.Transaction{Then: []catalog.Op{{Key: key, Value: []byte(v)}, {Key: "gone", Value: []byte(v)}}})
			if err != nil {
				t.Fatal(err)
			}
			last = r.Revision
		}
		if _, err := s.Commit(t.Context(), catalog.Transaction{Then: []catalog.Op{{Key: "gone", Delete: true}}}); err != nil {
			t.Fatal(err)
		}
		if i == keysWritten/2 {
			if err := s.Compact(t.Context(), last); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestMain also runs the test binary as a child: one that opens a damaged directory,
// or one that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "open-damaged" {
		os.Exit(openDamaged(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == "write-for-ever" {
		os.Exit(writeForEver(os.Args[2]))
	}
	os.Exit(m.Run())
}

// Exit codes of the child: anything else is a panic, a crash or an exit by etcd.
const (
	exitWhole   = 10 // opened, everything there
	exitCorrupt = 11 // refused, with an error of ours
	exitSilent  = 12 // opened, and something is missing or different
	exitOther   = 13 // refused, with another error
)

func openDamaged(dir string) int {
	opt := options(dir)
	opt.StartTimeout = 20 * time.Second
	code, err := readBack(opt)
	fmt.Println(err)
	return code
}

func readBack(opt etcdkv.Options) (int, error) {
	ctx, cancel := contextFor(opt)
	defer cancel()
	s, err := etcdkv.Open(ctx, opt)
	switch {
	case errors.Is(err, meta.ErrCorrupt):
		if !strings.Contains(err.Error(), opt.Dir) || !strings.Contains(err.Error(), "backup") {
			return exitOther, fmt.Errorf("the error does not say where and what to do: %w", err)
		}
		return exitCorrupt, err
	case err != nil:
		return exitOther, err
	}
	defer s.Close()
	for i := range keysWritten {
		kv, found, _, err := s.Get(ctx, fmt.Sprintf("k/%04d", i))
		if errors.Is(err, meta.ErrCorrupt) {
			return exitCorrupt, err
		}
		if err != nil || !found || string(kv.Value) != value(i) {
			return exitSilent, fmt.Errorf("key %d: found %v, %v", i, found, err)
		}
	}
	if _, found, _, err := s.Get(ctx, "gone"); found || err != nil {
		return exitSilent, fmt.Errorf("a deleted key is back: %v, %v", found, err)
	}
	if _, err := s.Commit(ctx, catalog.Transaction{Then: []catalog.Op{{Key: "after", Value: []byte("x")}}}); err != nil {
		return exitOther, err
	}
	return exitWhole, nil
}

// TestDamagedFilesAreRefused cuts files and flips bytes at random places and opens
// the result in a child process, where a panic or an exit of etcd's would show.
func TestDamagedFilesAreRefused(t *testing.T) {
	t.Parallel()
	pristine := t.TempDir()
	fill(t, pristine)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var files []string
	filepath.WalkDir(pristine, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(p, ".tmp") {
			rel, _ := filepath.Rel(pristine, p)
			files = append(files, rel)
		}
		return nil
	})
	counts := make(map[int]int)
	for i := range rounds {
		file := files[i%len(files)]
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(pristine)); err != nil {
			t.Fatal(err)
		}
		what := damage(t, rng, filepath.Join(dir, file), i/len(files))
		out, err := exec.Command(os.Args[0], "open-damaged", dir).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("child: %v\n%s", err, out)
		}
		counts[exit.ExitCode()]++
		switch code := exit.ExitCode(); code {
		case exitWhole, exitCorrupt:
		default:
			t.Errorf("%s, %s: exit code %d\n%.3000s", file, what, code, out)
		}
		os.RemoveAll(dir)
	}
	t.Logf("%d whole, %d refused", counts[exitWhole], counts[exitCorrupt])
	if counts[exitCorrupt] < rounds/4 {
		t.Errorf("only %d of %d damages were noticed", counts[exitCorrupt], rounds)
	}
}

func damage(t *testing.T, rng *rand.Rand, file string, kind int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// Preallocated zeroes hold nothing: aim at what is written.
	end := len(strings.TrimRight(string(b), "\x00"))
	at := rng.IntN(max(end, 1))
	var what string
	switch kind % 4 {
	case 0:
		b, what = b[:at], fmt.Sprintf("cut at %d", at)
	case 1:
		b[at] ^= 1 << rng.IntN(8)
		what = fmt.Sprintf("bit flipped at %d", at)
	case 2:
		for i := at; i < min(at+512, len(b)); i++ {
			b[i] = byte(rng.Uint32())
		}
		what = fmt.Sprintf("sector overwritten at %d", at)
	case 3:
		clear(b[at:min(at+4096, len(b))])
		what = fmt.Sprintf("page zeroed at %d", at)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return what
}
