package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// top is all that may stand at the top of the tree, besides dot-files.
var top = []string{
	"services", "tiering", "meta", "wal", "sdk", "loadtest", "infra",
	"go.mod", "go.sum", "Makefile", "README.md", "LICENSE",
}

// root is the module's folder, found from this package's.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatalf("this package has moved: %v", err)
	}
	return dir
}

// files lists what git tracks and what it would track, relative to the root.
func files(t *testing.T) []string {
	t.Helper()
	command := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	command.Dir = root(t)
	out, err := command.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	return strings.Fields(string(out))
}

func TestTopLevel(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range files(t) {
		name, _, _ := strings.Cut(f, "/")
		if !seen[name] && !strings.HasPrefix(name, ".") && !slices.Contains(top, name) {
			t.Errorf("%s stands at the top of the tree: it belongs into one of the seven folders", name)
		}
		seen[name] = true
	}
	for _, name := range top {
		if !strings.Contains(name, ".") && name != "Makefile" && name != "LICENSE" && seen[name] {
			if _, err := os.Stat(filepath.Join(root(t), name, "README.md")); err != nil {
				t.Errorf("%s has no README.md that says what it owns, what it never does, and how data passes through it", name)
			}
		}
	}
}

func TestEveryPackageHasDocs(t *testing.T) {
	for _, p := range packages(t) {
		sources := written(t, p.Dir, p.GoFiles)
		if len(sources) == 0 && len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue // generated code alone
		}
		home := "doc.go"
		if p.Name == "main" && len(sources) == 1 {
			home = sources[0].name // a program of one file
		}
		doc := ""
		if i := slices.IndexFunc(sources, func(s source) bool { return s.name == home }); i >= 0 {
			doc = sources[i].ast.Doc.Text()
		}
		if len(doc) < 80 {
			t.Errorf("%s: %s has no package comment that says what the package owns", p.relative(), home)
		}
		for _, s := range sources {
			if s.name != home && s.ast.Doc.Text() != "" {
				t.Errorf("%s/%s: the package comment belongs into doc.go", p.relative(), s.name)
			}
		}
	}
}
