package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const maxLines = 800

// marks are words that put something off. They are split here so that this file
// does not hold them.
var marks = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"}, "|") + `)\b|\bfor ` + `now\b|\bnot ` + `implemented\b`)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// A source is one Go file that a person wrote.
type source struct {
	dir, name string
	text      string
	ast       *ast.File
	positions *token.FileSet
}

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", filepath.Join(s.dir, s.name), s.positions.Position(n.Pos()).Line)
}

// written parses the named files of dir and leaves out generated ones.
func written(t *testing.T, dir string, names []string) []source {
	t.Helper()
	var all []source
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if generated.Match(data) {
			continue
		}
		s, err := parse(dir, name, string(data))
		if err != nil {
			t.Errorf("%s: %v", filepath.Join(dir, name), err)
			continue
		}
		all = append(all, s)
	}
	return all
}

func parse(dir, name, text string) (source, error) {
	positions := token.NewFileSet()
	tree, err := parser.ParseFile(positions, name, text, parser.ParseComments)
	return source{dir, name, text, tree, positions}, err
}

func TestSources(t *testing.T) {
	for _, p := range packages(t) {
		for _, s := range written(t, p.Dir, slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles)) {
			for _, complaint := range complaints(s) {
				t.Error(complaint)
			}
		}
	}
}

// complaints are all that is wrong with one file.
func complaints(s source) []string {
	var all []string
	if n := strings.Count(s.text, "\n"); n > maxLines {
		all = append(all, fmt.Sprintf("%s has %d lines, more than %d: it holds more than one noun", filepath.Join(s.dir, s.name), n, maxLines))
	}
	for i, line := range strings.Split(s.text, "\n") {
		if mark := marks.FindString(line); mark != "" {
			all = append(all, fmt.Sprintf("%s:%d puts something off (%q): do it, or write it down where work is planned", filepath.Join(s.dir, s.name), i+1, mark))
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if skips(n) {
				all = append(all, s.at(n)+" skips a test: a test that did not run proves nothing")
			}
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				all = append(all, s.at(n)+" has an init function: what runs should be visible in main")
			}
		}
		return true
	})
	return all
}

// skips reports t.Skip and its like, and testing.Short, which leads to it.
func skips(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	receiver, ok := selector.X.(*ast.Ident)
	if !ok {
		return false
	}
	if receiver.Name == "testing" {
		return selector.Sel.Name == "Short"
	}
	return slices.Contains([]string{"t", "b", "f", "tb"}, receiver.Name) &&
		slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, selector.Sel.Name)
}

func TestTheRuleRefusesBadSources(t *testing.T) {
	for want, text := range map[string]string{
		"":                  "package p\n\nfunc f(it iterator) { it.Skip(3) }\n",
		"skips a test":      "package p\n\nfunc TestX(t *testing.T) { t.Skip" + "(\"slow\") }\n",
		"an init function":  "package p\n\nfunc init" + "() {}\n",
		"puts something":    "package p\n\n// " + "TO" + "DO: later\n",
		"more than 800":     "package p\n" + strings.Repeat("\n", maxLines),
		"skips a test: a t": "package p\n\nvar _ = testing." + "Short()\n",
	} {
		s, err := parse("dir", "file.go", text)
		if err != nil {
			t.Fatal(err)
		}
		got := complaints(s)
		if want == "" && len(got) > 0 {
			t.Errorf("complains about a good file: %v", got)
		}
		if want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("want one complaint with %q, got %v", want, got)
		}
	}
}
