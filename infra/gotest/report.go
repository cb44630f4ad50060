package gotest

import "strings"

// Outcome is how a test or a package ended.
type Outcome string

// The outcomes that go test reports.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Skipped Outcome = "skip"
)

// Name is a test's whole name.
type Name struct{ Package, Test string }

// Package is how one package ended.
type Package struct {
	Path    string
	Outcome Outcome // Skipped: it has no tests
	Seconds float64
	Passed  int
	Failed  []Name // tests, innermost first
	Skipped []Name
	Output  string // of the package itself: build errors, panics, races outside a test
}

// Report is what a number of runs said. The zero value is empty.
type Report struct {
	Tests    map[Name]Outcome
	Output   map[Name]string // of tests that failed or were skipped
	Packages []Package
	Stray    []string // lines that were no events

	open map[string]*Package
}

// Count is the number of tests and subtests with that outcome. A package that
// failed without a failing test (it did not build, or it crashed) counts as one.
func (r *Report) Count(o Outcome) int {
	n := 0
	for _, outcome := range r.Tests {
		if outcome == o {
			n++
		}
	}
	for _, p := range r.Packages {
		if o == Failed && p.Outcome == Failed && len(p.Failed) == 0 {
			n++
		}
	}
	return n
}

// Failed is Count(Failed).
func (r *Report) Failed() int { return r.Count(Failed) }

// add takes one event and returns the package that it completes, if it does.
func (r *Report) add(e event) *Package {
	if r.Tests == nil {
		r.Tests, r.Output, r.open = map[Name]Outcome{}, map[Name]string{}, map[string]*Package{}
	}
	path := e.Package
	if path == "" { // a build event names "pkg [pkg.test]"
		path, _, _ = strings.Cut(e.ImportPath, " ")
	}
	p := r.open[path]
	if p == nil {
		p = &Package{Path: path}
		r.open[path] = p
	}
	name := Name{path, e.Test}
	switch e.Action {
	case "output", "build-output":
		if e.Test == "" {
			p.Output += e.Output
		} else {
			r.Output[name] += e.Output
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			return r.end(p, e)
		}
		r.Tests[name] = Outcome(e.Action)
		switch Outcome(e.Action) {
		case Passed:
			p.Passed++
			delete(r.Output, name)
		case Failed:
			p.Failed = append(p.Failed, name)
		case Skipped:
			p.Skipped = append(p.Skipped, name)
		}
	}
	return nil
}

func (r *Report) end(p *Package, e event) *Package {
	p.Outcome, p.Seconds = Outcome(e.Action), e.Elapsed
	if built := r.open[e.FailedBuild]; built != nil && built != p {
		p.Output = built.Output + p.Output
	}
	if cut, _, ok := strings.Cut(e.FailedBuild, " "); ok && r.open[cut] != nil && r.open[cut] != p {
		p.Output = r.open[cut].Output + p.Output
	}
	delete(r.open, p.Path)
	r.Packages = append(r.Packages, *p)
	return p
}
