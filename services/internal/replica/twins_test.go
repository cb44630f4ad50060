package replica

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Each twin is read at exactly one place, and has a test that uses it.
func TestTwinsAreReadOnce(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code, tests strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, "_test.go") {
			tests.Write(b)
		} else {
			code.Write(b)
		}
	}
	typ := reflect.TypeFor[Twins]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		if n := len(regexp.MustCompile(`\.`+name+`\b`).FindAllString(code.String(), -1)); n != 1 {
			t.Errorf("%s is read at %d places", name, n)
		}
		if !strings.Contains(tests.String(), name+": true") && !regexp.MustCompile(name+`: +true`).MatchString(tests.String()) {
			t.Errorf("%s has no test", name)
		}
	}
}
