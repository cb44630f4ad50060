package replica

import (
	"encoding/binary"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// local is the content of a state record: what a copy knows that is not in its log.
type local struct {
	stranger, broken bool
	lineage          meta.Lineage
	instance         uint64
	promise          meta.Epoch
	commit           meta.LSN
	expiry           uint64
}

const localVersion = 1

func (d *Durable) local() local {
	return local{
		stranger: d.stranger, broken: d.broken, lineage: d.lineage, instance: d.instance,
		promise: d.promise, commit: d.state.lsn, expiry: d.state.expiry,
	}
}

func (l *local) encode() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, 48), localVersion, bit(l.stranger), bit(l.broken))
	b = le.AppendUint64(b, uint64(l.lineage))
	b = le.AppendUint64(b, l.instance)
	b = le.AppendUint64(b, uint64(l.promise))
	b = le.AppendUint64(b, uint64(l.commit))
	return le.AppendUint64(b, l.expiry)
}

func bit(yes bool) byte {
	if yes {
		return 1
	}
	return 0
}

func decodeLocal(b []byte) (local, error) {
	d := entry.NewDecoder(b)
	if v := d.U8(); d.Err() == nil && v != localVersion {
		return local{}, meta.Errorf(meta.ErrFormatLevel, "state record has version %d: this build reads %d", v, localVersion)
	}
	l := local{
		stranger: d.Bool(), broken: d.Bool(), lineage: meta.Lineage(d.U64()), instance: d.U64(),
		promise: meta.Epoch(d.U64()), commit: meta.LSN(d.U64()), expiry: d.U64(),
	}
	return l, d.Finish("state record")
}

func (d *Durable) applyLocal(b []byte) error {
	l, err := decodeLocal(b)
	if err != nil {
		return err
	}
	if l.broken && !d.broken {
		d.Break()
	}
	d.lineage, d.instance = l.lineage, l.instance
	d.stranger = l.stranger || d.broken // what was written before the log broke does not absolve it
	d.promise = max(d.promise, l.promise)
	d.state.expiry = l.expiry
	if !d.broken {
		d.advance(l.commit)
	}
	return nil
}

const baseVersion = 1

// installation is the content of a base record, whose LSN is the base's. All that
// a base changes stands in this one record, so that a crash leaves the old copy or
// the new one.
type installation struct {
	base     Base
	lineage  meta.Lineage
	instance uint64
	stranger bool
}

func (n *installation) encode() []byte {
	le := binary.LittleEndian
	out := append(make([]byte, 0, 64+len(n.base.State)), baseVersion, bit(n.stranger))
	out = le.AppendUint64(out, uint64(n.lineage))
	out = le.AppendUint64(out, n.instance)
	out = le.AppendUint64(out, uint64(n.base.Mark))
	return append(le.AppendUint32(out, uint32(len(n.base.State))), n.base.State...)
}

func decodeInstallation(lsn meta.LSN, b []byte) (installation, error) {
	d := entry.NewDecoder(b)
	if v := d.U8(); d.Err() == nil && v != baseVersion {
		return installation{}, meta.Errorf(meta.ErrFormatLevel, "base record has version %d: this build reads %d", v, baseVersion)
	}
	n := installation{stranger: d.Bool(), lineage: meta.Lineage(d.U64()), instance: d.U64()}
	n.base = Base{LSN: lsn, Mark: meta.LSN(d.U64())}
	n.base.State = d.Bytes(d.Length32(entry.MaxPayload))
	return n, d.Finish("base record")
}

// applyBase replaces log and state, whole. The promise stays.
func (d *Durable) applyBase(lsn meta.LSN, b []byte) error {
	n, err := decodeInstallation(lsn, b)
	if err != nil {
		return err
	}
	s, err := n.base.state(d.state.expiry)
	if err != nil {
		return err
	}
	if d.twins != nil && d.twins.BaseOverwrites {
		d.promise = s.epoch
	}
	d.promise = max(d.promise, s.epoch)
	d.lineage, d.instance, d.stranger, d.broken = n.lineage, n.instance, n.stranger, false
	d.start, d.state, d.tail, d.over = lsn+1, *s, s.point, overlay{}
	return nil
}

// state is the shard state that the base stands for. An empty State is that of a
// log that has nothing yet; it is allowed at LSN 0 only.
func (b *Base) state(expiry uint64) (*State, error) {
	if len(b.State) == 0 && b.LSN == 0 {
		s := newState(expiry)
		return &s, nil
	}
	s, err := DecodeState(b.State)
	if err != nil {
		return nil, err
	}
	if s.lsn > b.LSN || b.Mark != 0 && b.Mark <= s.lsn {
		return nil, meta.Errorf(meta.ErrCorrupt, "base at LSN %d of mark %d has the state of LSN %d", b.LSN, b.Mark, s.lsn)
	}
	s.rebase(b.LSN, b.Mark)
	return s, nil
}
