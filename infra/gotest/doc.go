// Package gotest runs `go test -json` and turns its events into results: which
// tests ran, which passed, failed or were skipped, and what the failing ones
// said. It decides nothing; the commands that use it do.
//
// A Report is filled by one goroutine and read after Run has returned.
package gotest
