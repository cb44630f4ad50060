package gotest

import (
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestOne"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"fine\n"}
{"Action":"run","Package":"m/a","Test":"TestTwo"}
{"Action":"run","Package":"m/a","Test":"TestTwo/sub"}
{"Action":"output","Package":"m/a","Test":"TestTwo/sub","Output":"wrong\n"}
{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":0.1}
{"Action":"fail","Package":"m/a","Test":"TestTwo/sub","Elapsed":0}
{"Action":"fail","Package":"m/a","Test":"TestTwo","Elapsed":0}
{"Action":"skip","Package":"m/a","Test":"TestThree","Elapsed":0}
{"Action":"fail","Package":"m/a","Elapsed":0.5}
{"ImportPath":"m/b [m/b.test]","Action":"build-output","Output":"b.go:3: undefined: x\n"}
{"ImportPath":"m/b [m/b.test]","Action":"build-fail"}
{"Action":"fail","Package":"m/b","Elapsed":0,"FailedBuild":"m/b [m/b.test]"}
{"Action":"output","Package":"m/c","Output":"?   \tm/c\t[no test files]\n"}
{"Action":"skip","Package":"m/c","Elapsed":0}
`

func TestReport(t *testing.T) {
	var r Report
	var ended []string
	if err := r.read(strings.NewReader("go: downloading x\n"+events), func(p Package) { ended = append(ended, p.Path) }); err != nil {
		t.Fatal(err)
	}
	if got := []int{r.Count(Passed), r.Count(Failed), r.Count(Skipped)}; got[0] != 1 || got[1] != 3 || got[2] != 1 {
		t.Errorf("passed, failed (two tests and a package that did not build), skipped: %v, want [1 3 1]", got)
	}
	if strings.Join(ended, " ") != "m/a m/b m/c" {
		t.Errorf("packages ended: %v", ended)
	}
	if got := r.Output[Name{"m/a", "TestTwo/sub"}]; got != "wrong\n" {
		t.Errorf("output of the failing test: %q", got)
	}
	if _, kept := r.Output[Name{"m/a", "TestOne"}]; kept {
		t.Error("the output of a passing test is kept")
	}
	if got := r.Packages[1].Output; !strings.Contains(got, "undefined: x") {
		t.Errorf("the build error is lost: %q", got)
	}
	if len(r.Stray) != 1 {
		t.Errorf("stray lines: %q", r.Stray)
	}
}
