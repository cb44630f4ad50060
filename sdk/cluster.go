package sdk

import (
	"context"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// ShardDescription is what a broker, the catalog and the bucket know of a shard.
type ShardDescription = varvev1.DescribeShardResponse

// Abandoned says what an abandon keeps and gives up.
type Abandoned = varvev1.AbandonShardResponse

// DescribeShard tells what is known of a shard; for operators.
func (c *Client) DescribeShard(ctx context.Context, s Shard) (*ShardDescription, error) {
	return call(ctx, c, "describe "+s.String(), always,
		&varvev1.DescribeShardRequest{Stream: s.Stream, Incarnation: optional(s.Incarnation), Shard: s.Number},
		func(e *endpoint, ctx context.Context, r *varvev1.DescribeShardRequest) (*varvev1.DescribeShardResponse, error) {
			return e.cluster.DescribeShard(ctx, r)
		})
}

// AbandonShard gives up what only lost copies of a shard hold, on an operator's
// word. lost names the storage id of every member, 32 hex digits each. With dryRun
// it only says what would happen. It is never repeated.
func (c *Client) AbandonShard(ctx context.Context, s Shard, lost []string, dryRun bool) (*Abandoned, error) {
	return call(ctx, c, "abandon "+s.String(), certain,
		&varvev1.AbandonShardRequest{Stream: s.Stream, Incarnation: optional(s.Incarnation), Shard: s.Number, Lost: lost, DryRun: dryRun},
		func(e *endpoint, ctx context.Context, r *varvev1.AbandonShardRequest) (*varvev1.AbandonShardResponse, error) {
			return e.cluster.AbandonShard(ctx, r)
		})
}
