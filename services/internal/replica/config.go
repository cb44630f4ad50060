package replica

import (
	"time"

	"github.com/varve-io/varve/meta"
)

// Config is what one replica is told at its birth. It never changes; what may
// change (members, epoch, level) comes as an [Assignment].
type Config struct {
	Shard  meta.ShardID
	Self   meta.Member    // this broker and the storage id of its directory
	Boot   meta.BootNonce // of this process; an epoch granted to another boot is not ours
	Expiry time.Duration  // log age after which a silent producer is forgotten; default 7 days. Stored when the shard is formed, then fixed
	Limits Limits
	Twins  Twins
}

// Prepared is a Config with its defaults, to make many replicas of. Safe for
// concurrent use.
type Prepared struct{ cfg Config }

// Prepare fills in the defaults. Shard does not matter.
func (c Config) Prepare() *Prepared { return &Prepared{c.withDefaults()} }

// Limits bound what a replica keeps. Zero values mean the defaults.
type Limits struct {
	// TableSoft is the encoded size of the client table, in bytes, from which
	// producers that are not in it are refused. Default 3 MiB.
	TableSoft int
	// TableHard is the size from which even a known producer is refused while its
	// window would still grow. Default 4.5 MiB, so that a mark's payload fits.
	TableHard int
	// Marks is the most archive marks that may wait for their manifest. Default 64.
	Marks int
	// Pending is the most entries above the commit mark. Default 65536; a
	// proposal beyond it is refused and may be tried again.
	Pending int
	// Resend is how many ticks an unanswered message waits before it is sent
	// again. Default 3.
	Resend int
}

const (
	defaultExpiry    = 7 * 24 * time.Hour
	defaultTableSoft = 3 << 20
	defaultTableHard = 4608 << 10
	maxMarks         = 1024
)

func (c Config) withDefaults() Config {
	if c.Expiry <= 0 {
		c.Expiry = defaultExpiry
	}
	orElse(&c.Limits.TableSoft, defaultTableSoft)
	orElse(&c.Limits.TableHard, defaultTableHard)
	orElse(&c.Limits.Marks, 64)
	orElse(&c.Limits.Pending, 1<<16)
	orElse(&c.Limits.Resend, 3)
	c.Limits.TableHard = min(c.Limits.TableHard, defaultTableHard)
	c.Limits.Marks = min(c.Limits.Marks, maxMarks)
	return c
}

func orElse(n *int, value int) {
	if *n <= 0 {
		*n = value
	}
}

// Twins switch single rules off, for tests that show that the rule is needed.
// Each is read at exactly one place. The zero value is the real thing.
type Twins struct {
	CountUnsynced    bool // E2: the leader counts itself before its writes are durable
	CountStrangers   bool // E28, D8: a stranger's answer counts
	CommitByCopies   bool // E22: inherited entries commit by copies alone
	BestByLSN        bool // E22: the best log is the longest one
	MajorityShort    bool // E18: a majority is one short
	CountUnadopted   bool // E19: a follower counts by its end alone
	VectorTooEarly   bool // E7: the leader sends its vector without the opening entry
	ResumeEpoch      bool // E24: an epoch granted to another boot is taken up
	TruncateAdopted  bool // E29: a copy truncates for a leader it has adopted
	MarkUnadopted    bool // E30: a commit mark is believed before adoption
	DuplicateAtOnce  bool // E31: a duplicate is answered before the first is committed
	ConditionFirst   bool // E31: the expected offset is judged before the duplicate
	BaseOverwrites   bool // E32: a base sets the promise back
	FoldOverlay      bool // W11: a checkpoint folds what is not committed
	ArchiveToEnd     bool // T2: a seal ends at the log's end, not at the commit mark
	StateOfNow       bool // T12: a seal's state is that of the log's end
	MatchByName      bool // N10: a message's incarnation and lineage are not looked at
	ReplacePair      bool // E8: an opening entry right after another adds no pair
	LowerEpochs      bool // E16: entries of a lower epoch are taken after a promise
	PromiseUnwritten bool // E20: a fence is answered before the promise is durable
	IgnoreInstance   bool // E33: an answer is taken whatever copy gave it
	IgnoreBoot       bool // D10: an answer is taken whatever boot gave it
}
