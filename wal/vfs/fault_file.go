package vfs

// faultFile passes a file's operations through its file system's rules.
type faultFile struct {
	f     *Fault
	inner File
	path  string
}

// syncFailer is what a file offers that can imitate a failed fsync.
type syncFailer interface{ FailSync() }

func (x *faultFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = x.f.do(Op{Kind: OpRead, Path: x.path, Off: off, Len: len(p)}, func() (err error) {
		n, err = x.inner.ReadAt(p, off)
		return err
	}, nil)
	return n, err
}

func (x *faultFile) WriteAt(p []byte, off int64) (n int, err error) {
	o, r, after := x.f.start(Op{Kind: OpWrite, Path: x.path, Off: off, Len: len(p)})
	switch {
	case r == nil:
		n, err = x.inner.WriteAt(p, off)
	default:
		part := p[:min(r.Short, len(p))]
		if r.Applied {
			part = p
		}
		if len(part) > 0 {
			n, err = x.inner.WriteAt(part, off)
		}
		if err == nil {
			err = r.error(o)
		}
	}
	if after != nil {
		after(o, err)
	}
	return n, err
}

func (x *faultFile) Sync() error {
	return x.f.do(Op{Kind: OpSync, Path: x.path}, x.inner.Sync, func() error {
		if s, ok := x.inner.(syncFailer); ok {
			s.FailSync()
		}
		return nil
	})
}

// FailSync passes on: a Fault may wrap a Fault.
func (x *faultFile) FailSync() {
	if s, ok := x.inner.(syncFailer); ok {
		s.FailSync()
	}
}

func (x *faultFile) Truncate(size int64) error {
	return x.f.do(Op{Kind: OpTruncate, Path: x.path, Off: size}, func() error { return x.inner.Truncate(size) }, nil)
}

func (x *faultFile) Size() (n int64, err error) {
	err = x.f.do(Op{Kind: OpStat, Path: x.path}, func() (err error) {
		n, err = x.inner.Size()
		return err
	}, nil)
	return n, err
}

// Close always closes; a rule only changes what it reports.
func (x *faultFile) Close() error {
	return x.f.do(Op{Kind: OpClose, Path: x.path}, x.inner.Close, x.inner.Close)
}
