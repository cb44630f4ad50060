// Package sdk is the Go client: appending to streams, reading and tailing them,
// and managing streams and namespaces.
//
//	client, err := sdk.Dial("localhost:4400")
//	producer := client.Producer("logs/app")
//	position, err := producer.Append(ctx, sdk.Record{Value: line})
//	for record, err := range client.Read(ctx, "logs/app", sdk.FromStart(), sdk.Follow()) { ... }
//
// # What it promises
//
//   - A [Producer] is idempotent unless told otherwise: whatever breaks, each of its
//     records is stored once, in order, or its append ends with an error. It retries
//     until its delivery timeout, for ever by default; cancelling an Append ends the
//     wait and never the write.
//   - [Client.Append] is one call for one answer and can carry conditions. It is
//     sent again only where that cannot store anything twice.
//   - [Client.Read] goes on by itself at the right record after restarts and broken
//     connections, and ends with an error when its stream is deleted or recreated.
//   - Errors are an [Error]: a reason (errors.Is), whether a retry may help, and
//     whether the request was applied: no, or unknown. See [AppliedOf].
//   - Memory is bounded: by [ProducerOptions.MaxBuffered] for each producer, by a
//     few batches for each shard that is read.
//
// A [Client], a [Producer] and the options may be used by many goroutines at once;
// an iterator by one. Every goroutine that is started has ended when
// [Producer.Close] or [Client.Close] returns. The package keeps no global state and
// logs nothing: see [Events].
package sdk
