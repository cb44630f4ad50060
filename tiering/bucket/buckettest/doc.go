// Package buckettest is the conformance suite of [bucket.Bucket]. Each check is a
// function of a bucket that returns what is wrong, so that the suite itself can be
// tested against stores that break a promise on purpose.
//
//	func TestConformance(t *testing.T) {
//		buckettest.Run(t, buckettest.Options{}, func(t *testing.T) bucket.Bucket { ... })
//	}
package buckettest
