package replica

import "github.com/varve-io/varve/meta"

// Role is what a replica is doing.
type Role uint8

// The roles, in the order in which a leadership passes through them.
//
//	Following --assignment--> Promising --durable--> Fencing --majority--> Copying --best log own--> Opening --durable--> Leading
//	    ^                                                                                                             |
//	    +------------------------------- a higher epoch, another assignment, resign --------------------------------+
//
// Stopped (an alarm) and Poisoned (storage) are for good.
const (
	Following Role = iota
	Promising      // its own promise is not durable yet
	Fencing        // waits for a majority of promises
	Copying        // copies the best log
	Opening        // its opening entry is not durable yet
	Leading
	Stopped  // something that must not happen: data is kept, nothing is served
	Poisoned // storage failed
)

var roleNames = [...]string{"following", "promising", "fencing", "copying", "opening", "leading", "stopped", "poisoned"}

func (r Role) String() string { return roleNames[r] }

// Status is a view of a replica for its driver and for people.
type Status struct {
	Role    Role
	Lineage meta.Lineage
	Epoch   meta.Epoch // of the newest assignment
	Promise meta.Epoch
	Leader  meta.Member // of the newest assignment
	Serving bool        // leads, and its opening entry is committed: proposals are answered
	// NeedsEpoch: this replica is the row's leader but can't lead that epoch
	// (granted to an older boot, or overtaken): ask for a new one.
	NeedsEpoch bool
	Waiting    []string // what it waits for, "member: reason"; why it stopped
	Best       meta.Member

	Stranger bool
	Closed   bool // appends are ended in this epoch
	View
}

// View is what the durable state says. LSNs are inclusive unless said otherwise.
type View struct {
	Start       meta.LSN    // first LSN of the local log
	Last        meta.LSN    // last entry appended; Start-1 when there is none
	Commit      meta.LSN    // last entry known to be committed
	Next        meta.Offset // next offset to be given out
	Committed   meta.Offset // next offset as of Commit
	StartOffset meta.Offset // as of Commit
	LastTime    meta.Micros // append time of the last entry
	ArchivedEnd meta.LSN    // everything below is in objects that a committed mark names
	Archived    meta.Offset // records below are in such objects, or trimmed
	Droppable   meta.LSN    // everything below is in objects that a written manifest names
	Marks       int         // applied marks that wait for their manifest
	Producers   int
	Token       bool // a fence token is set
	Strict      bool
}
