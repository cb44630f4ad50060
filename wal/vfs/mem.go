package vfs

import (
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a file system in memory that keeps apart what a running process sees
// and what a power cut leaves.
//
//	              WriteAt, Truncate            File.Sync
//	process --------------------> pending ops ----------> durable content
//	              Create, Rename, Remove       SyncDir
//	process --------------------> pending names --------> durable names
//
// Pending data ops belong to a file, pending name ops to a directory; syncing the
// one never helps the other. [Mem.CrashClone] makes a new Mem from the durable
// parts and as much of the pending ones as the caller wants to survive.
//
// Memory is used by written pages only, so sparse files cost nothing. The first
// part of a path is its mount: "data" and "run" lie on different disks
// ([Mem.Mount]), though they share capacity.
type Mem struct {
	mu    sync.Mutex
	rng   *rand.Rand
	seed  uint64
	root  *node
	names []*nameOp // not yet durable, in order
	locks map[string]*memLock
	limit int64 // bytes of pages; 0 means no limit
	used  int64
	clock int64 // modification times: one second an operation
	next  uint64
}

// NewMem returns an empty file system. The seed decides what a seeded
// [CrashClone] without a seed of its own keeps.
func NewMem(seed uint64) *Mem {
	m := &Mem{seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), locks: map[string]*memLock{}}
	m.root = m.newNode(true)
	return m
}

// node is a file or a directory.
type node struct {
	id       uint64
	dir      bool
	modified int64

	children map[string]*node // as the process sees them
	durable  map[string]*node // as a power cut leaves them

	data    content  // as the process sees it
	disk    content  // as a power cut leaves it
	pending []dataOp // what turns disk into data, but for what a failed sync dropped

	links, opens int
}

// nameOp is one change of names that is not durable yet. It becomes so when its
// directory is synced; a rename counts with the directory that gets the new name.
type nameOp struct {
	dir    *node // whose SyncDir makes it durable
	name   string
	node   *node // what the name then means; nil when it was removed
	oldDir *node // a rename also takes this name away, in the same step
	old    string
}

func (o *nameOp) apply(durable func(*node) map[string]*node) {
	if o.oldDir != nil {
		if from := durable(o.oldDir); from[o.old] == o.node {
			delete(from, o.old)
		}
	}
	if o.node == nil {
		delete(durable(o.dir), o.name)
		return
	}
	durable(o.dir)[o.name] = o.node
}

func (m *Mem) newNode(dir bool) *node {
	m.next++
	n := &node{id: m.next, dir: dir}
	if dir {
		n.children, n.durable = map[string]*node{}, map[string]*node{}
	}
	return n
}

func fail(op, name string, err error) error { return &os.PathError{Op: op, Path: name, Err: err} }

func split(name string) []string {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil
	}
	return strings.Split(name, "/")
}

// find walks to a node. The caller holds mu.
func (m *Mem) find(parts []string) (*node, error) {
	n := m.root
	for _, p := range parts {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.children[p]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// parent finds the directory of a name and the name's last part.
func (m *Mem) parent(name string) (*node, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", fs.ErrInvalid
	}
	d, err := m.find(parts[:len(parts)-1])
	if err == nil && !d.dir {
		err = syscall.ENOTDIR
	}
	return d, parts[len(parts)-1], err
}

func (m *Mem) touch(n *node) {
	m.clock++
	n.modified = m.clock
}

// Create implements [FS].
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, last, err := m.parent(name)
	if err == nil && d.children[last] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return nil, fail("create", name, err)
	}
	n := m.newNode(false)
	m.link(d, last, n)
	m.touch(n)
	return m.open(name, n, true), nil
}

// Open implements [FS].
func (m *Mem) Open(name string) (File, error) { return m.openExisting(name, true) }

// OpenRead implements [FS].
func (m *Mem) OpenRead(name string) (File, error) { return m.openExisting(name, false) }

func (m *Mem) openExisting(name string, write bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(split(name))
	if err == nil && n.dir {
		err = syscall.EISDIR
	}
	if err != nil {
		return nil, fail("open", name, err)
	}
	return m.open(name, n, write), nil
}

// List implements [FS].
func (m *Mem) List(name string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.find(split(name))
	if err == nil && !d.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, fail("list", name, err)
	}
	return slices.Sorted(maps.Keys(d.children)), nil
}

// Stat implements [FS].
func (m *Mem) Stat(name string) (os.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parts := split(name)
	n, err := m.find(parts)
	if err != nil {
		return nil, fail("stat", name, err)
	}
	base := "/"
	if len(parts) > 0 {
		base = parts[len(parts)-1]
	}
	return memInfo{name: base, size: n.data.size, dir: n.dir, modified: n.modified}, nil
}

// Lock implements [FS]. Locks die with the process: a clone has none.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, last, err := m.parent(name)
	if err != nil {
		return nil, fail("lock", name, err)
	}
	if d.children[last] == nil {
		n := m.newNode(false)
		m.link(d, last, n)
		m.touch(n)
	}
	key := strings.Join(split(name), "/")
	if m.locks[key] != nil {
		return nil, fail("lock", name, ErrLocked)
	}
	l := &memLock{m: m, key: key}
	m.locks[key] = l
	return l, nil
}

type memLock struct {
	m   *Mem
	key string
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.locks[l.key] != l {
		return fs.ErrClosed
	}
	delete(l.m.locks, l.key)
	return nil
}

// SetCapacity limits the bytes that written pages may use; 0 lifts the limit.
// What is there already stays.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
}

// Free implements [FS]. Without a limit it is 1 TiB.
func (m *Mem) Free(name string) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find(split(name)); err != nil {
		return 0, fail("free", name, err)
	}
	if m.limit == 0 {
		return 1 << 40, nil
	}
	return uint64(max(0, m.limit-m.used)), nil
}

// Mount implements [FS]: the first part of the path.
func (m *Mem) Mount(name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parts := split(name)
	if _, err := m.find(parts); err != nil {
		return "", fail("mount", name, err)
	}
	if len(parts) == 0 {
		return "mem", nil
	}
	return "mem-" + parts[0], nil
}

type memInfo struct {
	name     string
	size     int64
	dir      bool
	modified int64
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return time.Unix(i.modified, 0).UTC() }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() os.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}
