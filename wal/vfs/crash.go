package vfs

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Keep says how much of what was not synced survives a power cut.
type Keep uint8

const (
	KeepNone    Keep = iota // nothing
	KeepAll                 // everything, as if the kernel had just written it all back
	KeepSectors             // each 512-byte sector of each write, and each name, by chance
	KeepBytes               // each write kept, lost, or cut at a byte, and each name, by chance
	KeepLast                // data: only each file's last 4 KiB page of unsynced data; names: only the last change of each directory
	KeepPrefix              // data: the first CrashOptions.Prefix bytes of unsynced data, in order of files' age and of writes; names: the first CrashOptions.Prefix changes
)

const sectorSize = 512

// CrashOptions says what a power cut leaves. The zero value keeps nothing that
// was not synced.
type CrashOptions struct {
	Data  Keep
	Names Keep
	// Prefix is for [KeepPrefix].
	Prefix int64
	// Seed decides by chance; 0 takes the next one of the file system's own.
	Seed uint64
}

// CrashClone returns what a power cut at this moment could leave. The original
// runs on untouched; the clone has no open handles and no locks, and everything
// in it is durable.
func (m *Mem) CrashClone(opts CrashOptions) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	if opts.Seed == 0 {
		opts.Seed = m.rng.Uint64() | 1
	}
	c := &crash{opts: opts, rng: rand.New(rand.NewPCG(opts.Seed, 2)), left: opts.Prefix,
		to: NewMem(opts.Seed), made: map[*node]*node{}, names: map[*node]map[string]*node{}}
	c.keepNames(m.names)
	c.disks = map[*node]content{}
	for _, n := range m.files() {
		c.disks[n] = c.keepData(n)
	}
	c.to.limit, c.to.clock, c.to.next = m.limit, m.clock, m.next
	c.to.root = c.node(m.root)
	return c.to
}

// KillClone returns what the next process on this machine finds when this one is
// killed now: the page cache with all its unsynced data and names, and what a
// failed sync left in it. The original runs on untouched.
func (m *Mem) KillClone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &kill{to: NewMem(m.seed), made: map[*node]*node{}}
	k.to.limit, k.to.clock, k.to.next = m.limit, m.clock, m.next
	k.to.root = k.node(m.root)
	for _, o := range m.names {
		k.to.names = append(k.to.names, &nameOp{dir: k.node(o.dir), name: o.name, node: k.node(o.node), oldDir: k.node(o.oldDir), old: o.old})
	}
	return k.to
}

// Unsynced counts the bytes of data and the changes of names that a power cut
// could take: the bounds for [KeepPrefix].
func (m *Mem) Unsynced() (bytes, names int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.files() {
		for _, o := range n.pending {
			bytes += o.weight()
		}
	}
	return bytes, int64(len(m.names))
}

// weight is what an op counts in [KeepPrefix]: a truncation as one byte.
func (o *dataOp) weight() int64 { return max(1, int64(len(o.data))) }

type crash struct {
	opts  CrashOptions
	rng   *rand.Rand
	left  int64 // data bytes that KeepPrefix still keeps
	to    *Mem
	made  map[*node]*node
	names map[*node]map[string]*node // each directory's surviving names
	disks map[*node]content          // each file's surviving content
}

func (c *crash) coin() bool { return c.rng.IntN(2) == 0 }

// keepNames decides which name changes survive. Each is atomic, a rename too.
func (c *crash) keepNames(ops []*nameOp) {
	last := map[*node]*nameOp{}
	for _, o := range ops {
		last[o.dir] = o
	}
	for i, o := range ops {
		var keep bool
		switch c.opts.Names {
		case KeepAll:
			keep = true
		case KeepSectors, KeepBytes:
			keep = c.coin()
		case KeepLast:
			keep = last[o.dir] == o
		case KeepPrefix:
			keep = int64(i) < c.opts.Prefix
		}
		if keep {
			o.apply(c.survivors)
		}
	}
}

// survivors is the working copy of a directory's durable names.
func (c *crash) survivors(d *node) map[string]*node {
	s := c.names[d]
	if s == nil {
		s = make(map[string]*node, len(d.durable))
		for name, n := range d.durable {
			s[name] = n
		}
		c.names[d] = s
	}
	return s
}

// node makes the clone's copy of a node and of all below it.
func (c *crash) node(n *node) *node {
	if made := c.made[n]; made != nil {
		return made
	}
	cp := &node{id: n.id, dir: n.dir, modified: n.modified}
	c.made[n] = cp
	if !n.dir {
		cp.disk = c.disks[n]
		cp.data = cp.disk.clone()
		c.to.used += cp.data.bytes()
		return cp
	}
	cp.children, cp.durable = map[string]*node{}, map[string]*node{}
	names := c.survivors(n)
	for name, n := range names {
		child := c.node(n)
		child.links++
		cp.children[name], cp.durable[name] = child, child
	}
	return cp
}

// keepData decides which unsynced data of a file survive.
func (c *crash) keepData(n *node) content {
	survives := n.disk.clone()
	disk := &survives
	if c.opts.Data == KeepLast {
		keepLastPage(n, disk)
		return survives
	}
	for _, o := range n.pending {
		switch c.opts.Data {
		case KeepAll:
			o.apply(disk)
		case KeepSectors:
			c.keepSectors(o, disk)
		case KeepBytes:
			c.keepBytes(o, disk)
		case KeepPrefix:
			if c.left > 0 && o.data == nil {
				o.apply(disk)
			} else if c.left > 0 {
				disk.writeAt(o.data[:min(int64(len(o.data)), c.left)], o.off)
			}
			c.left = max(0, c.left-o.weight())
		}
	}
	return survives
}

// keepSectors keeps each sector of a write by chance. The size may have been
// written although the data was not, and then reads as zeroes.
func (c *crash) keepSectors(o dataOp, disk *content) {
	if o.data == nil {
		if c.coin() {
			o.apply(disk)
		}
		return
	}
	end := o.off + int64(len(o.data))
	for at := o.off; at < end; {
		next := min(end, (at/sectorSize+1)*sectorSize)
		if c.coin() {
			disk.writeAt(o.data[at-o.off:next-o.off], at)
		}
		at = next
	}
	if c.coin() {
		disk.size = max(disk.size, end)
	}
}

func (c *crash) keepBytes(o dataOp, disk *content) {
	switch c.rng.IntN(3) {
	case 0:
		o.apply(disk)
	case 1:
		if o.data != nil {
			disk.writeAt(o.data[:c.rng.IntN(len(o.data)+1)], o.off)
		}
	}
}

// keepLastPage keeps the page that holds the end of the newest write, and the
// file's size, and loses every earlier page.
func keepLastPage(n *node, disk *content) {
	for i := len(n.pending) - 1; i >= 0; i-- {
		o := n.pending[i]
		if o.data == nil {
			continue
		}
		end := o.off + int64(len(o.data))
		from := max(o.off, (end-1)/pageSize*pageSize)
		disk.writeAt(o.data[from-o.off:], from)
		return
	}
}

// kill copies a tree as the process sees it, with what is pending.
type kill struct {
	to   *Mem
	made map[*node]*node
}

func (k *kill) node(n *node) *node {
	if n == nil {
		return nil
	}
	if made := k.made[n]; made != nil {
		return made
	}
	cp := &node{id: n.id, dir: n.dir, modified: n.modified, links: n.links}
	k.made[n] = cp
	if !n.dir {
		cp.disk, cp.pending = n.disk.clone(), append([]dataOp(nil), n.pending...)
		if n.links > 0 {
			cp.data = n.data.clone()
			k.to.used += cp.data.bytes()
		}
		return cp
	}
	cp.children, cp.durable = map[string]*node{}, map[string]*node{}
	for name, child := range n.children {
		cp.children[name] = k.node(child)
	}
	for name, child := range n.durable {
		cp.durable[name] = k.node(child)
	}
	return cp
}

// files lists every file that a name leads to, now or after a power cut, oldest first.
func (m *Mem) files() []*node {
	seen := map[*node]bool{}
	var walk func(n *node)
	walk = func(n *node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		for _, c := range n.children {
			walk(c)
		}
		for _, c := range n.durable {
			walk(c)
		}
	}
	walk(m.root)
	for _, o := range m.names {
		walk(o.node)
	}
	var files []*node
	for n := range seen {
		if !n.dir {
			files = append(files, n)
		}
	}
	slices.SortFunc(files, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	return files
}
