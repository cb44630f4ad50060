// Command check is `make check`: everything that a change must satisfy and that
// takes no test run. Each step prints one line; a step that fails prints what
// is wrong and what to do. All steps run, whatever fails; it exits 1 if one did.
//
//	usage: go run ./infra/check
package main
