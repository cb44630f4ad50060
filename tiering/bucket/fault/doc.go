// Package fault wraps a bucket with scripted faults, for tests: errors before or
// after the effect (a lost acknowledgement), latency, answers that are short or
// have a flipped bit, calls that are held until a test lets them go, an outage
// switch, and counters of the calls.
//
//	b := fault.New(dirBucket)
//	b.Inject(fault.Fault{Op: fault.Put, Key: "manifests/", After: bucket.ErrUnknown})
//	hold := b.Hold(fault.Fault{Op: fault.Put, Key: "streams/"})
//	<-hold.Arrived()
//	...
//	hold.Release()
//
// Without faults it behaves as the bucket below it. Faults are tried in the order
// they were injected; the first that matches a call and has turns left decides.
//
// Safe for concurrent use. The only goroutines are calls that land late
// ([Fault.Late]); Close waits for them.
package fault
