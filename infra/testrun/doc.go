// Command testrun is `make test`: it sees to it that the machine has what the
// tests need, runs every test of the module (with the race detector where
// goroutines meet), and ends with the number of skipped tests and one line of
// counts.
//
//	usage: go run ./infra/testrun [-run REGEXP] [-count N] [PACKAGES...]
//
// What the tests need besides Go: a real MinIO, which is built with go install
// when it is not there yet; and, for the race detector, a C compiler, which is
// installed with apt-get where that is possible.
//
// It exits 0 only when at least one test ran, none failed and none was skipped.
package main
