package lint

import (
	"slices"
	"strings"
)

const module = "github.com/varve-io/varve"

// A room is one folder and everything under it that is not a room of its own.
type room struct {
	path  string   // relative to the module; "" never
	may   []string // rooms that its code may import; "x/..." also means what lies under x
	tests []string // further rooms that its tests may import
}

// rooms is the tree, lowest first. A room may always import what lies under it
// in the same room and, in tests, its own packages.
var rooms = []room{
	{path: "meta"},
	{path: "meta/entry", may: []string{"meta"}},
	{path: "wal/vfs", may: []string{"meta"}},
	{path: "wal/frame", may: []string{"meta", "meta/entry"}},
	{path: "tiering/bucket", may: []string{"meta"}, tests: []string{"infra/minio"}},
	{path: "sdk/proto"},
	{path: "sdk/batch"},

	{path: "wal", may: []string{"meta", "meta/entry", "wal/frame", "wal/vfs/..."}, tests: []string{"sdk/batch"}},
	{path: "meta/catalog", may: []string{"meta", "meta/entry"}, tests: []string{"meta/memkv", "meta/etcdkv"}},
	{path: "tiering/segment", may: []string{"meta", "meta/entry", "sdk/batch"}},
	{path: "sdk", may: []string{"sdk/proto/...", "sdk/batch"}, tests: []string{"services/servicetest"}},

	{path: "meta/etcdkv", may: []string{"meta", "meta/catalog/..."}},
	{path: "meta/memkv", may: []string{"meta", "meta/catalog/..."}},
	{path: "tiering", may: []string{"meta", "meta/entry", "sdk/batch", "tiering/bucket", "tiering/segment"}, tests: []string{"tiering/bucket/...", "infra/minio"}},
	{path: "services/internal/peer", may: []string{"meta", "meta/entry", "sdk/batch", "sdk/proto/..."}},
	{path: "services/internal/run", may: []string{"meta"}},

	{path: "services/internal/replica", may: []string{"meta", "meta/entry", "sdk/batch"}},

	{path: "services/internal/broker", may: lower, tests: fakes},
	{path: "services/internal/control", may: lower, tests: fakes},

	{path: "services/internal/edge", may: slices.Concat(lower, []string{"services/internal/broker/...", "services/internal/control/...", "sdk/proto/..."}), tests: slices.Concat(fakes, []string{"sdk"})},
	{path: "services/internal/console", may: []string{"meta", "sdk/proto/...", "services/internal/run"}},

	{path: "services/internal/cli", may: []string{"..."}},
	{path: "services/varve", may: []string{"..."}},
	{path: "services/servicetest", may: []string{"..."}},

	{path: "loadtest", may: []string{"sdk/..."}},
	{path: "loadtest/demo", may: []string{"sdk/...", "infra/minio", "infra/server", "loadtest/report"}},
	{path: "loadtest/tour", may: []string{"infra/server"}},
	{path: "infra", may: []string{"infra/minio", "infra/gotest", "infra/server"}},
	{path: "infra/minio"},
	{path: "infra/gotest"},
	{path: "infra/server"},
}

// fakes are the stand-ins and real servers that tests of the upper rooms use.
var fakes = []string{"wal/vfs/...", "meta/memkv", "meta/etcdkv", "tiering/bucket/...", "infra/minio", "services/servicetest"}

// lower is what broker and control may import: every room under them but the
// adapters, which main wires in.
var lower = []string{
	"meta", "meta/entry", "meta/catalog", "wal", "wal/vfs", "sdk/batch", "tiering", "tiering/bucket", "tiering/segment",
	"services/internal/replica", "services/internal/peer", "services/internal/run",
}

// only names libraries that one room alone may import ("" for nobody), tests
// included.
var only = []struct {
	library string
	rooms   []string
	why     string
}{
	{"go.etcd.io/", []string{"meta/etcdkv"}, "etcd stays behind the catalog's port"},
	{"github.com/aws/", []string{"tiering/bucket/s3"}, "S3 stays behind the bucket port"},
	{"github.com/minio/minio/", nil, "the server is a separate process, never a library"},
	{"github.com/minio/minio-go/", []string{"infra", "loadtest", "tiering"}, "an independent client, for stack, demonstration and checks"},
	{"github.com/spf13/", []string{"services/internal/cli", "services/internal/run", "services/varve", "loadtest", "infra"}, "flags belong to programs"},
}

// banned are package names that say nothing.
var banned = []string{"common", "util", "utils", "types", "helper", "helpers", "manager", "misc", "shared"}

// roomOf is the room with the longest path that holds pkg (relative to the
// module), or nil.
func roomOf(pkg string) *room {
	var found *room
	for i := range rooms {
		r := &rooms[i]
		if within(pkg, r.path) && (found == nil || len(r.path) > len(found.path)) {
			found = r
		}
	}
	return found
}

// within reports whether pkg is folder or lies under it.
func within(pkg, folder string) bool {
	return pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

// allowed reports whether package from may import package to, both relative to
// the module.
func allowed(from, to string, test bool) bool {
	r := roomOf(from)
	if r == nil || roomOf(to) == nil {
		return false
	}
	if roomOf(to) == r {
		return sameRoom(r, from, to, test)
	}
	for _, pattern := range r.may {
		if matches(pattern, to) {
			return true
		}
	}
	if test {
		for _, pattern := range r.tests {
			if matches(pattern, to) {
				return true
			}
		}
	}
	return false
}

// sameRoom: parents and children know each other as far as the compiler's rule
// against cycles lets them; siblings meet in tests only, except under loadtest,
// where they are parts of one runner.
func sameRoom(r *room, from, to string, test bool) bool {
	return test || within(from, to) || within(to, from) || r.path == "loadtest"
}

func matches(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	if folder, ok := strings.CutSuffix(pattern, "/..."); ok {
		return within(pkg, folder)
	}
	return pattern == pkg
}
