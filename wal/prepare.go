package wal

// preparer makes log files before they are needed, so that the writer never
// waits for zeroes to be written: it keeps one file ready to follow the current
// one, makes more when reservations ask for them or little is left, and removes
// what is too much and promised to nobody. One goroutine.
func (l *Log) preparer() {
	for {
		l.mu.Lock()
		step := l.chore()
		l.mu.Unlock()
		if step != nil {
			step()
			continue
		}
		select {
		case <-l.prepares:
		case <-l.quit:
			return
		}
	}
}

// chore chooses the preparer's next step, or nil. Called with the mutex.
func (l *Log) chore() func() {
	s := &l.space
	switch all, _ := s.bytes(l.index); {
	case l.killed || l.err != nil:
		return nil
	case len(s.stale) > 0:
		f := s.stale[0]
		s.stale = s.stale[1:]
		return func() { _ = l.folder.remove(f) } // what stays is found at the next start
	case s.next == nil && len(s.free) > 0:
		f := s.free[0]
		s.free = s.free[1:]
		s.preparing = f
		first := s.current.end()
		return func() { l.prepareNext(f, first) }
	case all+s.size <= l.opts.Budget && (s.wanted || s.full == nil && l.low()):
		s.wanted = false
		s.making = 1
		s.made++
		number := s.made
		return func() { l.makeFile(number) }
	case len(s.free) > 0 && (len(s.free) > max(minFiles, s.most/2) || all > l.opts.Budget) && l.unpromised() >= 2*s.fresh(s.slack):
		f := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		return func() { _ = l.folder.remove(f) } // what stays is found at the next start
	}
	s.wanted = false
	return nil
}

// low says that a file should be made ahead of need. Called with the mutex.
func (l *Log) low() bool {
	return l.space.next == nil || l.unpromised() < l.space.fresh(l.space.slack)
}

// unpromised is the room that producers could still be promised without another
// file. Called with the mutex.
func (l *Log) unpromised() int64 {
	s := &l.space
	return s.physical(s.slack) - s.queued - s.reserved - s.keptForCommands(s.slack) - s.keptForCopy(s.slack)
}

func (l *Log) prepareNext(f *logFile, first Position) {
	err := l.folder.prepare(f, first)
	l.mu.Lock()
	l.space.preparing = nil
	if err == nil {
		l.space.next = f
	} else {
		l.space.free = append(l.space.free, f)
	}
	l.broadcast()
	l.mu.Unlock()
	if err != nil {
		l.poison(err)
	}
}

func (l *Log) makeFile(number uint64) {
	f, err := l.folder.create(number)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.space.making = 0
	l.space.attempts++
	l.space.full = err
	if err == nil {
		l.space.free = append(l.space.free, f)
	}
	l.broadcast()
}
