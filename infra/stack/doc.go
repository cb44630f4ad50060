// Command stack is `make stack` and `make stack-down`: a real MinIO with a
// bucket, and a varve server on it, in the background.
//
//	usage: go run ./infra/stack up|down|status
//
// Everything lies under .stack/: the binary, the data of both, their logs, and
// a pid file for each. Up starts only what does not run; down ends only what
// these pid files name, and only while the process is still the one that was
// started. Data stays; `make clean` removes it.
//
// The server's configuration is varve.yaml beside this file.
package main
