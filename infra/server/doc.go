// Package server runs the varve binary as a process of its own, for the local
// stack, the guided tour and the demonstration: build it, start it, wait until
// it serves, stop it in order or kill it.
//
// A Process owns one goroutine, which waits for the operating system's process
// and ends with it. Methods are safe for concurrent use.
package server
