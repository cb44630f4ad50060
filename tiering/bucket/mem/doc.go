// Package mem is a bucket in memory, for simulation and tests. It keeps the same
// promises as the real ones, refuses a key that is the folder of another, and
// lists page by page.
//
// Safe for concurrent use. A Bucket starts no goroutine and takes no time.
package mem
