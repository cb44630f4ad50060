package edge

import (
	"context"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// clusters answers ClusterService.
type clusters struct{ *Server }

func (s *clusters) DescribeShard(ctx context.Context, r *varvev1.DescribeShardRequest) (*varvev1.DescribeShardResponse, error) {
	t, id, err := s.locate(ctx, VerbAdmin, r.GetStream(), r.Incarnation, r.GetShard())
	if err != nil {
		return nil, err
	}
	d, err := s.broker.Describe(ctx, id)
	if err != nil {
		return nil, t.explain(err)
	}
	out := &varvev1.DescribeShardResponse{
		Incarnation: uint64(id.Incarnation), State: string(d.Row.State), Lineage: uint64(d.Row.Lineage), Epoch: uint64(d.Row.Epoch),
	}
	if d.Row.State == catalog.ShardServed {
		out.Leader = member(d.Row.Leader)
	}
	for _, m := range d.Row.Members {
		out.Members = append(out.Members, member(m))
	}
	if d.Held {
		c := d.Copy
		out.Copy = &varvev1.ShardCopy{
			Member: member(d.Self), Role: c.Role.String(), Stranger: c.Stranger, Waiting: c.Waiting, Lineage: uint64(c.Lineage),
			FirstLsn: uint64(c.Start), LastLsn: uint64(c.Last), CommittedLsn: uint64(c.Commit), ArchivedEnd: uint64(c.ArchivedEnd),
			StartOffset: uint64(c.StartOffset), Tail: uint64(c.Committed), NextOffset: uint64(c.Next), Producers: uint32(c.Producers),
		}
		if d.Alarm != nil {
			out.Copy.Alarm = d.Alarm.Error()
		}
	}
	if m := d.Archive; m != nil {
		segments, bytes := m.Count()
		out.Archive = &varvev1.ShardArchive{
			Manifest: m.Key(), EndLsn: uint64(m.ArchivedEnd), StartOffset: uint64(m.StartOffset), NextOffset: uint64(m.NextOffset),
			Segments: segments, Bytes: bytes,
		}
	}
	return out, nil
}

func (s *clusters) AbandonShard(ctx context.Context, r *varvev1.AbandonShardRequest) (*varvev1.AbandonShardResponse, error) {
	t, id, err := s.locate(ctx, VerbAdmin, r.GetStream(), r.Incarnation, r.GetShard())
	if err != nil {
		return nil, err
	}
	var lost []meta.StorageID
	for _, text := range r.GetLost() {
		storage, err := meta.ParseStorageID(text)
		if err != nil {
			return nil, err
		}
		lost = append(lost, storage)
	}
	a, err := s.broker.Abandon(ctx, id, lost, r.GetDryRun())
	if err != nil {
		return nil, t.explain(err)
	}
	out := &varvev1.AbandonShardResponse{
		OldLineage: uint64(a.Old), Lineage: uint64(a.New), Source: string(a.Source),
		KeptLsn: uint64(a.KeptLSN), NextOffset: uint64(a.Next), CommittedLsn: uint64(a.Committed),
	}
	for _, m := range a.GivenUp {
		out.GivenUp = append(out.GivenUp, m.Storage.String())
	}
	slices.Sort(out.GivenUp)
	return out, nil
}

func member(m meta.Member) *varvev1.ShardMember {
	return &varvev1.ShardMember{Broker: string(m.Broker), Storage: m.Storage.String()}
}
