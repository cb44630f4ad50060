// Command tour is `make run`: it starts the service on this machine, on the
// embedded default (one process, nothing to install, state in ./varve-data),
// and shows in a few commands what it does: append, read, tail, tier, replay
// after a kill. Then the service goes on until Ctrl-C.
//
//	usage: go run ./loadtest/tour [-once] [-data DIR] [-listen ADDR]
//
// Every line that begins with "$" is a command that can be typed as it stands.
package main
