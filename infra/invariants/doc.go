// Command invariants is `make invariants`: it runs every test that names a row
// of what must always hold (rows.txt) and lists each row with its tests and how
// they ended. A row counts only if it has a test and all of its tests ran and
// passed, unskipped, in this checkout; a row without one is listed as open.
//
//	usage: go run ./infra/invariants [-list] [-open]
//
// A test names its rows in its own name (TestW1_TornTail, TestD2_D3_Start) or
// by "Rows: W1, W2" in the comment above it. A row that rows.txt does
// not have is an error, so that a slip of the pen is not a row that seems open.
//
// It exits 1 when a test of a row failed, did not run or names an unknown row.
package main
