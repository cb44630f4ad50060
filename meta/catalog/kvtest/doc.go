// Package kvtest is the one conformance suite of the catalog's key-value port.
// Every implementation runs it: what holds for the store in memory, on which most
// tests run, holds for the real one.
//
// [Run] calls the given constructor for every case; cases do not share a store.
package kvtest
