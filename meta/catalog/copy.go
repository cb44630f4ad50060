package catalog

import (
	"context"
	"fmt"

	"github.com/varve-io/varve/meta"
)

// Verdict is what the catalog makes of a data directory that reports in.
type Verdict uint8

// The verdicts.
const (
	Fresh     Verdict = iota + 1 // never heard of
	SameStart                    // the start that reported before, again
	Advanced                     // a later start, with everything that was seen
	Stranger                     // cloned or rolled back: it must take a new storage id
)

func (v Verdict) String() string {
	return [...]string{"none", "fresh", "same start", "advanced", "stranger"}[v]
}

// Judge compares a report with what was last heard of the same storage id (nil:
// nothing). why is set for a stranger, and says what to do. Pure.
func Judge(seen *CopyRow, report CopyRow) (v Verdict, why string) {
	const do = "this directory was copied or set back to an older state"
	switch {
	case seen == nil:
		return Fresh, ""
	case report.Start < seen.Start:
		return Stranger, fmt.Sprintf("storage %s: start %d reports in after start %d was seen: %s", report.Storage, report.Start, seen.Start, do)
	case report.Start == seen.Start && report.Boot != seen.Boot:
		return Stranger, fmt.Sprintf("storage %s: start %d was seen already, from another process: %s", report.Storage, report.Start, do)
	case report.Start == seen.Start:
		return SameStart, "" // a retry, or a report that was overtaken
	case report.Synced < seen.Synced:
		return Stranger, fmt.Sprintf("storage %s: its log ends at %d, but %d was seen synced: %s", report.Storage, report.Synced, seen.Synced, do)
	}
	return Advanced, ""
}

// RegisterCopy reports a data directory's start: its count, the boot's nonce and
// the synced WAL position, in bytes. Before the verdict nothing of the directory
// may be offered to peers. A stranger's report changes nothing.
func (c *Catalog) RegisterCopy(ctx context.Context, report CopyRow) (Verdict, string, error) {
	if err := report.validate(); err != nil {
		return 0, "", err
	}
	type answer struct {
		v   Verdict
		why string
	}
	tried := Verdict(0)
	a, err := change(ctx, c, "register storage "+report.Storage.String(), func() (answer, error) {
		seen, err := c.Copy(ctx, report.Storage)
		if err != nil && !isNotFound(err) {
			return answer{}, err
		}
		var was *CopyRow
		if err == nil {
			was = &seen
		}
		v, why := Judge(was, report)
		if v == SameStart && tried != 0 {
			v = tried // our own attempt, whose answer was lost
		}
		put := report
		put.Synced = max(put.Synced, seen.Synced)
		if v == Stranger || was != nil && seen.saysAll(put) {
			return answer{v, why}, nil
		}
		r, err := c.commit(ctx, Transaction{
			If:   unchanged(copyKey(report.Storage), seen.Revision, encodeCopy(seen)),
			Then: []Op{{Key: copyKey(report.Storage), Value: encodeCopy(put)}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		if isUnknown(err) {
			tried = v
		}
		return answer{v, why}, err
	})
	return a.v, a.why, err
}

func (r CopyRow) saysAll(o CopyRow) bool {
	r.Revision, o.Revision = 0, 0
	return r == o
}

func (r CopyRow) validate() error {
	if r.Storage.IsZero() || r.Boot == 0 || r.Start == 0 {
		return meta.Invalidf("a copy's report names its storage id, boot and start count (from 1)")
	}
	return r.Broker.Validate()
}

// NoteSynced records how far a started directory's log is synced, every few
// seconds. meta.ErrStranger: another start of the same storage id has reported in
// since; this process must stop answering for it.
func (c *Catalog) NoteSynced(ctx context.Context, report CopyRow) error {
	v, why, err := c.RegisterCopy(ctx, report)
	switch {
	case err != nil:
		return err
	case v == Stranger:
		return meta.Errorf(meta.ErrStranger, "%s", why)
	}
	return nil
}

// Copy reads what was last heard of a storage id; meta.ErrNotFound when nothing was.
func (c *Catalog) Copy(ctx context.Context, id meta.StorageID) (CopyRow, error) {
	kv, found, _, err := c.kv.Get(ctx, copyKey(id))
	if err != nil {
		return CopyRow{}, err
	}
	if !found {
		return CopyRow{}, meta.Errorf(meta.ErrNotFound, "storage %s was never heard of", id)
	}
	return decodeCopy(kv)
}

// ForgetCopy removes what is kept of a storage id that is gone for good.
func (c *Catalog) ForgetCopy(ctx context.Context, id meta.StorageID) error {
	_, err := c.commit(ctx, Transaction{Then: []Op{{Key: copyKey(id), Delete: true}}})
	return err
}
