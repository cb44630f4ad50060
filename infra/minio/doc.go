// Package minio finds, installs and runs the pinned MinIO server, for tests and
// for the local stack. The server is a separate process and never linked: its
// licence is the AGPL, and its project is archived, so the version is pinned by
// [Module].
//
//	srv, err := minio.Start(ctx, minio.Options{Dir: dir})
//	...
//	err = srv.MakeBucket(ctx, "varve")
//	url := srv.URL("varve", "prefix")     // s3://varve/prefix?endpoint=http://127.0.0.1:...
//	defer srv.Stop(ctx)
//
// The binary lies in $XDG_CACHE_HOME/varve/bin (or ~/.cache/varve/bin). Where it
// is missing, `go install` builds it there once, minutes long; a file lock keeps
// two processes from doing it at once. Where it can't be had, [Install] and
// [Start] fail with what to do: a test that needs MinIO fails then, and is never
// skipped.
//
// A Server listens on the loopback address only, with credentials made for it.
// It can be killed and started again on the same port with the same data.
//
// A Server owns one goroutine that waits for its process; Stop and Kill end it.
// Methods are safe for concurrent use.
package minio
