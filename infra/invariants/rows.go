package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed rows.txt
var rowsText string

// A row is one promise.
type row struct{ id, promise string }

// A test is one test function and the rows that it names.
type test struct {
	folder, name string // folder relative to the module, slashes
	rows         []string
}

func parseRows(text string) ([]row, error) {
	var rows []row
	for n, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, promise, ok := strings.Cut(line, " ")
		if promise = strings.TrimSpace(promise); !ok || promise == "" || !rowID.MatchString(id) {
			return nil, fmt.Errorf("rows.txt:%d: want \"ID promise\", have %q", n+1, line)
		}
		if slices.ContainsFunc(rows, func(r row) bool { return r.id == id }) {
			return nil, fmt.Errorf("rows.txt:%d: %s stands there twice", n+1, id)
		}
		rows = append(rows, row{id, promise})
	}
	return rows, nil
}

var (
	rowID = regexp.MustCompile(`^[NDEWTUC][1-9][0-9]?$`)
	// B12 and its like number failures of other systems that became tests here.
	publicCase = regexp.MustCompile(`^B[1-9][0-9]*$`)
	testName   = regexp.MustCompile(`^(?:Test|Fuzz)((?:[NDEWTUC][1-9][0-9]?_)+)`)
	rowsLine   = regexp.MustCompile(`\bRows:\s*([A-Z][0-9]+(?:,\s*[A-Z][0-9]+)*)?`) // a sentence may go before and follow
)

// findTests reads every test file under root.
func findTests(root string) ([]test, error) {
	var tests []test
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "varve-data") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil // go test will say it
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		tests = append(tests, testsIn(filepath.ToSlash(folder), file)...)
		return err
	})
	return tests, err
}

func testsIn(folder string, file *ast.File) []test {
	var tests []test
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
			continue
		}
		if rows := rowsOf(f.Name.Name, f.Doc.Text()); len(rows) > 0 {
			tests = append(tests, test{folder, f.Name.Name, rows})
		}
	}
	return tests
}

func rowsOf(name, comment string) []string {
	var rows []string
	if m := testName.FindStringSubmatch(name); m != nil {
		rows = strings.Split(strings.TrimSuffix(m[1], "_"), "_")
	}
	for _, m := range rowsLine.FindAllStringSubmatch(comment, -1) {
		for _, id := range strings.Split(m[1], ",") {
			if id = strings.TrimSpace(id); !publicCase.MatchString(id) && !slices.Contains(rows, id) {
				rows = append(rows, id)
			}
		}
	}
	return rows
}
