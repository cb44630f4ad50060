package replica

import "github.com/varve-io/varve/meta"

// Replica is one copy of a shard.
type Replica struct{ d *Durable }

// New makes a replica.
func New(cfg Config, d *Durable) *Replica { return &Replica{d: d} }

// Step takes one input.
func (r *Replica) Step(in Input) Ready { panic("unwritten") }

// Status is a view for the driver and for people.
func (r *Replica) Status() Status { panic("unwritten") }

// Durable is the live fold.
func (r *Replica) Durable() *Durable { return r.d }

// Seal is what may be archived now.
func (r *Replica) Seal() (Seal, bool) { panic("unwritten") }

// Marks lists the applied marks that wait for their manifest.
func (r *Replica) Marks() []MarkRef { panic("unwritten") }

// Vector is the epoch vector.
func (d *Durable) Vector() meta.Vector { panic("unwritten") }
