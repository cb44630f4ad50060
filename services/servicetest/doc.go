// Package servicetest runs a whole node in one process, for tests: catalog, bucket,
// log and broker, over any file system, store and bucket, with a crash as cheap as
// a stop.
//
//	n := servicetest.Start(t, servicetest.Options{})
//	id := n.Create("logs/app")
//	n.Append(id, "one", "two")
//	n.Kill()                               // as a crash
//	n.Restart(n.Disk().CrashClone(vfs.CrashOptions{}))
//	n.Read(id, 0)                          // one, two
//
// What a node holds outside its process (disk, catalog's store, bucket) is in its
// [World] and survives kills. A node under test belongs to one test goroutine, but
// its Broker may be used from any.
package servicetest
