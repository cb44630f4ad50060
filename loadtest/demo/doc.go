// Command demo is `make demo`: one node, the whole way, on a real text corpus
// and a real object store.
//
//	usage: go run ./loadtest/demo [-scale 1] [-seed N] [-only 1,2,3] [-keep]
//
// The corpus is every .go file under GOROOT, several times over, to at least
// 1 GiB and 10 million lines. It goes through the varve binary's own commands,
// with a write-ahead log of at most 256 MiB and MinIO behind it:
//
//  1. append through a pipe while another process tails; SIGKILL three times
//  2. read it back, byte for byte, most of it from MinIO
//  3. read from an offset and from a time in the middle
//  4. delete the stream and create it again: empty, and its objects go
//  5. stop the object store for a minute under load
//  6. cut and flip copies of the data directory, and of etcd's own files
//
// It ends with a table, one line a row, and exits 1 if any row is short. With
// -scale below 1 sizes, budgets and times shrink together, which is the short
// form for a quick look; the figures to reach shrink with them.
//
// Everything is judged from outside: by what the commands print, by the files
// on disk, by the bucket as another client lists it, and by the server's
// counters only where nothing else can tell.
package main
