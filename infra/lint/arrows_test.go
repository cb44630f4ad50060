package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath, Dir, Name              string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

func (p pkg) relative() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func packages(t *testing.T) []pkg {
	t.Helper()
	var stderr bytes.Buffer
	command := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Name,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports", "./...")
	command.Dir, command.Stderr = root(t), &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
	if len(all) < 3 {
		t.Fatalf("go list found %d packages: the lint looks at the wrong tree", len(all))
	}
	return all
}

func TestImportDirection(t *testing.T) {
	for _, p := range packages(t) {
		from := p.relative()
		if roomOf(from) == nil {
			t.Errorf("package %s belongs to no room of rooms_test.go", from)
			continue
		}
		check := func(imports []string, test bool) {
			for _, i := range imports {
				if to, ours := strings.CutPrefix(i, module+"/"); ours && to != from && !allowed(from, to, test) {
					t.Errorf("%s must not import %s", from, to)
				}
				if why := forbidden(from, i); why != "" {
					t.Errorf("%s must not import %s: %s", from, i, why)
				}
			}
		}
		check(p.Imports, false)
		check(p.TestImports, true)
		check(p.XTestImports, true)
	}
}

// forbidden says why from may not import a library, or "".
func forbidden(from, library string) string {
	for _, rule := range only {
		if strings.HasPrefix(library+"/", rule.library) &&
			!slices.ContainsFunc(rule.rooms, func(r string) bool { return within(from, r) }) {
			return rule.why
		}
	}
	return ""
}

func TestPackageNames(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(banned, path.Base(p.ImportPath)) || slices.Contains(banned, p.Name) {
			t.Errorf("package %s: the name says nothing about what is in it", p.relative())
		}
	}
}

func TestTheRuleRefusesWrongArrows(t *testing.T) {
	for _, c := range []struct {
		from, to string
		test, ok bool
	}{
		{"meta", "wal", false, false},
		{"meta", "meta/entry", false, false},
		{"meta/entry", "meta", false, true},
		{"wal", "wal/frame", false, true},
		{"wal", "wal/vfs/faultfs", true, true},
		{"wal", "tiering", false, false},
		{"wal", "tiering", true, false},
		{"wal/frame", "wal", false, false},
		{"tiering", "wal", false, false},
		{"tiering", "tiering/bucket/dir", false, false},
		{"tiering", "tiering/bucket/dir", true, true},
		{"tiering/bucket/s3", "tiering/bucket", false, true},
		{"tiering/bucket/s3", "tiering/bucket/dir", false, false},
		{"meta/catalog", "meta/etcdkv", false, false},
		{"meta/etcdkv", "meta/catalog", false, true},
		{"services/internal/replica", "wal", false, false},
		{"services/internal/replica/sim", "services/internal/replica", false, true},
		{"services/internal/replica", "services/internal/broker", true, false},
		{"services/internal/broker", "services/internal/replica", false, true},
		{"services/internal/broker", "meta/etcdkv", false, false},
		{"services/internal/broker", "services/internal/edge", true, false},
		{"services/internal/edge", "services/internal/broker", false, true},
		{"services/varve", "meta/etcdkv", false, true},
		{"sdk", "meta", false, false},
		{"sdk", "sdk/batch", false, true},
		{"sdk/batch", "meta", false, false},
		{"sdk/proto/varve/v1", "meta", false, false},
		{"sdk/proto/varve/v1/varvev1connect", "sdk/proto/varve/v1", false, true},
		{"loadtest/demo", "sdk", false, true},
		{"loadtest/demo", "infra/minio", false, true},
		{"loadtest/check", "infra/minio", false, false},
		{"loadtest/demo", "services/internal/run", false, false},
		{"infra/stack", "infra/minio", false, true},
		{"infra/stack", "sdk", false, false},
		{"elsewhere", "meta", false, false},
	} {
		if got := allowed(c.from, c.to, c.test); got != c.ok {
			t.Errorf("%s imports %s (test %v): allowed is %v, want %v", c.from, c.to, c.test, got, c.ok)
		}
	}
}

func TestTheRuleRefusesWrongLibraries(t *testing.T) {
	for _, c := range []struct {
		from, library string
		ok            bool
	}{
		{"meta/etcdkv", "go.etcd.io/etcd/server/v3/embed", true},
		{"meta/catalog", "go.etcd.io/etcd/client/v3", false},
		{"services/varve", "go.etcd.io/bbolt", false},
		{"tiering/bucket/s3", "github.com/aws/aws-sdk-go-v2/service/s3", true},
		{"tiering/bucket", "github.com/aws/smithy-go", false},
		{"infra/minio", "github.com/minio/minio", false},
		{"infra/minio", "github.com/minio/minio-go/v7", true},
		{"wal", "github.com/minio/minio-go/v7", false},
		{"wal", "github.com/spf13/pflag", false},
		{"wal", "fmt", true},
	} {
		if got := forbidden(c.from, c.library) == ""; got != c.ok {
			t.Errorf("%s imports %s: allowed is %v, want %v", c.from, c.library, got, c.ok)
		}
	}
}
