package vfs

import (
	"io"
	"os"
	"sync"
	"syscall"
)

// OpKind is a kind of operation on an [FS] or a [File].
type OpKind uint8

// The kinds. OpAny matches all of them in a [Rule].
const (
	OpAny OpKind = iota
	OpCreate
	OpOpen // Open and OpenRead
	OpRemove
	OpRename
	OpMkdir
	OpSyncDir
	OpList
	OpStat // Stat, Size, Free and Mount
	OpLock
	OpRead
	OpWrite
	OpSync
	OpTruncate
	OpClose
)

var opNames = [...]string{"any", "create", "open", "remove", "rename", "mkdir", "syncdir", "list", "stat", "lock",
	"read", "write", "sync", "truncate", "close"}

func (k OpKind) String() string { return opNames[k] }

// Changes reports whether operations of that kind change what a crash leaves.
func (k OpKind) Changes() bool {
	switch k {
	case OpCreate, OpRemove, OpRename, OpMkdir, OpSyncDir, OpWrite, OpSync, OpTruncate:
		return true
	default:
		return false
	}
}

// Op is one operation, as hooks and rules see it.
type Op struct {
	N    int64 // counts all operations of a [Fault] from 1
	Kind OpKind
	Path string // as given to the FS; the new name of a rename
	Off  int64  // read, write, truncate
	Len  int    // read, write
}

// Rule makes an operation fail. Every field narrows what it matches.
type Rule struct {
	Kind  OpKind
	Match func(Op) bool // nil matches all
	Nth   int           // the first that fails, counted from 1 among those that match; 0 means 1
	Count int           // how many fail from there on; 0 means 1, negative all
	Err   error         // nil means EIO; an errno comes wrapped in an *os.PathError
	Short int           // a write first writes that many bytes
	// Applied lets the operation happen and reports failure all the same.
	Applied bool
}

// Fault is an [FS] that passes everything on to another, numbers it, shows it to
// hooks, and fails what its rules say. A failed Sync over a [Mem] drops what was
// unsynced as a failed fsync does (pages stay readable and clean).
type Fault struct {
	inner FS

	mu     sync.Mutex
	n      int64
	before func(Op)
	after  func(Op, error)
	rules  []*rule
}

type rule struct {
	Rule
	seen int
	hold chan struct{} // matched operations wait for it to close
}

// NewFault wraps a file system.
func NewFault(inner FS) *Fault { return &Fault{inner: inner} }

// Hook sets functions called around every operation, on the caller's goroutine
// and with no lock held; either may be nil. The one before sees the state a crash
// would find just ahead of the operation, the one after just behind it.
func (f *Fault) Hook(before func(Op), after func(Op, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// Fail adds a rule. Rules are asked in order; the first that fires decides.
func (f *Fault) Fail(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &rule{Rule: r})
}

// HoldSync makes every Sync of a file that match accepts (nil accepts all) wait
// until release is called; release may be called more than once.
func (f *Fault) HoldSync(match func(Op) bool) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := make(chan struct{})
	f.rules = append(f.rules, &rule{Rule: Rule{Kind: OpSync, Match: match, Count: -1}, hold: h})
	return sync.OnceFunc(func() { close(h) })
}

// Heal takes all rules away. Operations already held stay held.
func (f *Fault) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Ops is how many operations were started so far.
func (f *Fault) Ops() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// start numbers an operation, shows it to the hook and finds the rule that fires.
func (f *Fault) start(o Op) (Op, *rule, func(Op, error)) {
	f.mu.Lock()
	f.n++
	o.N = f.n
	before, after := f.before, f.after
	var fired *rule
	var held []chan struct{}
	for _, r := range f.rules {
		switch {
		case !r.matches(o):
		case r.hold != nil:
			held = append(held, r.hold)
		case fired == nil && r.fires():
			fired = r
		}
	}
	f.mu.Unlock()
	if before != nil {
		before(o)
	}
	for _, h := range held {
		<-h
	}
	return o, fired, after
}

func (r *rule) matches(o Op) bool {
	return (r.Kind == OpAny || r.Kind == o.Kind) && (r.Match == nil || r.Match(o))
}

// fires counts a match and says whether its turn has come.
func (r *rule) fires() bool {
	r.seen++
	first, count := max(1, r.Nth), max(1, r.Count)
	return r.seen >= first && (r.Count < 0 || r.seen < first+count)
}

func (r *rule) error(o Op) error {
	err := r.Err
	if err == nil {
		err = syscall.EIO
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = &os.PathError{Op: o.Kind.String(), Path: o.Path, Err: errno}
	}
	return err
}

// do runs an operation that has no result but an error. failed, if any, runs
// instead of run when a rule fires.
func (f *Fault) do(o Op, run, failed func() error) error {
	o, r, after := f.start(o)
	var err error
	switch {
	case r == nil:
		err = run()
	case r.Applied:
		if err = run(); err == nil {
			err = r.error(o)
		}
	default:
		if err = r.error(o); failed != nil {
			if e := failed(); e != nil {
				err = e
			}
		}
	}
	if after != nil {
		after(o, err)
	}
	return err
}

// Create implements [FS].
func (f *Fault) Create(path string) (File, error) { return f.open(OpCreate, path, f.inner.Create) }

// Open implements [FS].
func (f *Fault) Open(path string) (File, error) { return f.open(OpOpen, path, f.inner.Open) }

// OpenRead implements [FS].
func (f *Fault) OpenRead(path string) (File, error) { return f.open(OpOpen, path, f.inner.OpenRead) }

func (f *Fault) open(kind OpKind, path string, open func(string) (File, error)) (file File, err error) {
	err = f.do(Op{Kind: kind, Path: path}, func() (err error) {
		file, err = open(path)
		return err
	}, nil)
	if err != nil {
		if file != nil {
			_ = file.Close() // the caller only learns of the failure
		}
		return nil, err
	}
	return &faultFile{f: f, inner: file, path: path}, nil
}

// Remove implements [FS].
func (f *Fault) Remove(path string) error {
	return f.do(Op{Kind: OpRemove, Path: path}, func() error { return f.inner.Remove(path) }, nil)
}

// Rename implements [FS].
func (f *Fault) Rename(oldPath, newPath string) error {
	return f.do(Op{Kind: OpRename, Path: newPath}, func() error { return f.inner.Rename(oldPath, newPath) }, nil)
}

// MkdirAll implements [FS].
func (f *Fault) MkdirAll(path string) error {
	return f.do(Op{Kind: OpMkdir, Path: path}, func() error { return f.inner.MkdirAll(path) }, nil)
}

// SyncDir implements [FS].
func (f *Fault) SyncDir(path string) error {
	return f.do(Op{Kind: OpSyncDir, Path: path}, func() error { return f.inner.SyncDir(path) }, nil)
}

// List implements [FS].
func (f *Fault) List(path string) (names []string, err error) {
	err = f.do(Op{Kind: OpList, Path: path}, func() (err error) {
		names, err = f.inner.List(path)
		return err
	}, nil)
	return names, err
}

// Stat implements [FS].
func (f *Fault) Stat(path string) (info os.FileInfo, err error) {
	err = f.do(Op{Kind: OpStat, Path: path}, func() (err error) {
		info, err = f.inner.Stat(path)
		return err
	}, nil)
	return info, err
}

// Lock implements [FS].
func (f *Fault) Lock(path string) (lock io.Closer, err error) {
	err = f.do(Op{Kind: OpLock, Path: path}, func() (err error) {
		lock, err = f.inner.Lock(path)
		return err
	}, nil)
	if err != nil && lock != nil {
		_ = lock.Close() // the caller only learns of the failure
		lock = nil
	}
	return lock, err
}

// Free implements [FS].
func (f *Fault) Free(path string) (n uint64, err error) {
	err = f.do(Op{Kind: OpStat, Path: path}, func() (err error) {
		n, err = f.inner.Free(path)
		return err
	}, nil)
	return n, err
}

// Mount implements [FS].
func (f *Fault) Mount(path string) (id string, err error) {
	err = f.do(Op{Kind: OpStat, Path: path}, func() (err error) {
		id, err = f.inner.Mount(path)
		return err
	}, nil)
	return id, err
}
