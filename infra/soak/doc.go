// Command soak is `make soak`: the long forms. It fuzzes every fuzz test of the
// module for a while, one after the other, and then runs all tests many times
// under the race detector in a random order.
//
//	usage: go run ./infra/soak [-fuzz 1m] [-count 20]
//
// A failing input that fuzzing finds is kept by go test under testdata/fuzz:
// commit it with the fix.
package main
