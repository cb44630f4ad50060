package replica

import (
	"github.com/varve-io/varve/meta"
)

// NewDurable is the state of a copy that never promised and holds nothing.
func NewDurable() *Durable { return &Durable{} }

// Durable is what survives of a replica.
type Durable struct{ lineage meta.Lineage }

// Apply folds one record.
func (d *Durable) Apply(r *Record) error { panic("unwritten") }

// Break turns the copy into a stranger whose log is unknown.
func (d *Durable) Break() { panic("unwritten") }

// Estrange marks the copy as a stranger whose log is kept, as after a rotation of the storage id.
func (d *Durable) Estrange() { panic("unwritten") }

// Encode is the shard's section in a checkpoint.
func (d *Durable) Encode() []byte { panic("unwritten") }

// DecodeDurable reads what Encode wrote.
func DecodeDurable(b []byte) (*Durable, error) { panic("unwritten") }

// View is what the state says.
func (d *Durable) View() View { panic("unwritten") }
