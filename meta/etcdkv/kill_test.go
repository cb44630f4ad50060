package etcdkv_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
)

// writeForEver is the child that is killed: it counts up one key, compacts now and
// then, and says each number once it is acknowledged.
func writeForEver(dir string) int {
	ctx, cancel := contextFor(etcdkv.Options{StartTimeout: 1e12})
	defer cancel()
	s, err := etcdkv.Open(ctx, options(dir))
	if err != nil {
		fmt.Println("error:", err)
		return exitOther
	}
	kv, _, _, err := s.Get(ctx, "n")
	n := 0
	if err == nil && len(kv.Value) > 0 {
		_, err = fmt.Sscan(string(kv.Value), &n)
	}
	for err == nil {
		n++
		var r catalog.Result
		r, err = s.Commit(ctx, catalog.Transaction{Then: []catalog.Op{
			{Key: "n", Value: fmt.Append(nil, n)}, {Key: fmt.Sprint("k", n%7), Delete: n%2 == 0},
		}})
		if err == nil && n%50 == 0 {
			err = s.Compact(ctx, r.Revision)
		}
		fmt.Println(n)
	}
	fmt.Println("error:", err)
	return exitOther
}

// A member that is killed again and again opens each time, with everything it
// acknowledged. Public failure report B131.
func TestKilledMemberComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(3, 3))
	acked := 0
	for range 12 {
		cmd := exec.Command(os.Args[0], "write-for-ever", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := acked + 1 + rng.IntN(300)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			n := 0
			if _, err := fmt.Sscan(lines.Text(), &n); err != nil {
				t.Fatalf("child: %s", lines.Text())
			}
			if n <= acked {
				t.Fatalf("after %d was acknowledged, the next is %d", acked, n)
			}
			acked = n
			if n >= stop {
				break
			}
		}
		cmd.Process.Kill()
		for lines.Scan() { // what it said before it died
			fmt.Sscan(lines.Text(), &acked)
		}
		cmd.Wait()
	}
	if acked < 12 {
		t.Errorf("only %d writes", acked)
	}
}
