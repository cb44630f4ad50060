// Package cli is the command line of varve: one file per command. Commands parse,
// call, and print; a server's parts are wired together in serve.go.
//
// Data goes to standard output, everything else to standard error, so that pipes
// do the obvious thing. Exit codes are those of package run.
package cli
