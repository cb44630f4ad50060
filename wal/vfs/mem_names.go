package vfs

import (
	"io/fs"
	"slices"
	"syscall"
)

// link gives a node a name, and notes that it is not durable.
func (m *Mem) link(d *node, name string, n *node) {
	n.links++
	d.children[name] = n
	m.touch(d)
	m.names = append(m.names, &nameOp{dir: d, name: name, node: n})
}

// drop frees a file's pages once neither a name nor a handle needs them.
func (m *Mem) drop(n *node) {
	if n.links == 0 && n.opens == 0 {
		m.used -= n.data.bytes()
		n.data = content{}
	}
}

// Remove implements [FS].
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, last, err := m.parent(name)
	if err != nil {
		return fail("remove", name, err)
	}
	n := d.children[last]
	switch {
	case n == nil:
		return fail("remove", name, fs.ErrNotExist)
	case len(n.children) > 0:
		return fail("remove", name, syscall.ENOTEMPTY)
	}
	delete(d.children, last)
	m.touch(d)
	m.names = append(m.names, &nameOp{dir: d, name: last})
	n.links--
	m.drop(n)
	return nil
}

// Rename implements [FS]. It moves files only.
func (m *Mem) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, old, err := m.parent(oldName)
	if err != nil {
		return fail("rename", oldName, err)
	}
	to, last, err := m.parent(newName)
	if err != nil {
		return fail("rename", newName, err)
	}
	n, was := from.children[old], to.children[last]
	switch {
	case n == nil:
		return fail("rename", oldName, fs.ErrNotExist)
	case n == was:
		return nil
	case n.dir || was != nil && was.dir:
		return fail("rename", oldName, syscall.EISDIR)
	}
	delete(from.children, old)
	to.children[last] = n
	m.touch(from)
	m.touch(to)
	m.names = append(m.names, &nameOp{dir: to, name: last, node: n, oldDir: from, old: old})
	if was != nil {
		was.links--
		m.drop(was)
	}
	return nil
}

// MkdirAll implements [FS].
func (m *Mem) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.root
	for _, p := range split(name) {
		n := d.children[p]
		if n == nil {
			n = m.newNode(true)
			m.link(d, p, n)
			m.touch(n)
		}
		if !n.dir {
			return fail("mkdir", name, syscall.ENOTDIR)
		}
		d = n
	}
	return nil
}

// SyncDir implements [FS].
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.find(split(name))
	if err == nil && !d.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return fail("sync", name, err)
	}
	m.names = slices.DeleteFunc(m.names, func(o *nameOp) bool {
		if o.dir != d {
			return false
		}
		o.apply(func(n *node) map[string]*node { return n.durable })
		return true
	})
	return nil
}
