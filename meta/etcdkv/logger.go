package etcdkv

import (
	"context"
	"log/slog"
	"runtime"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/varve-io/varve/meta"
)

// failure remembers the first message by which etcd would have ended the process.
type failure struct {
	once sync.Once
	done chan struct{}
	err  error // set before done is closed
}

func (f *failure) set(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

func (f *failure) failed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// OnWrite runs instead of the panic or the exit that follows such a message. It
// ends the goroutine, running its deferred functions, and nothing else.
func (f *failure) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := meta.Errorf(meta.ErrPoisoned, "etcd stopped: %s", ce.Message)
	if why := cause(fields); why != nil {
		err = meta.Errorf(meta.ErrPoisoned, "etcd stopped: %s: %w", ce.Message, why)
	}
	f.set(err)
	runtime.Goexit()
}

// cause is the error that a message carries, or nil.
func cause(fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			return err
		}
	}
	return nil
}

// logger hands etcd's messages to slog, warnings and up, and its fatal ones to f.
func logger(log *slog.Logger, f *failure) *zap.Logger {
	return zap.New(&core{log: log}, zap.WithFatalHook(f), zap.WithPanicHook(f))
}

// core is the zap core behind that logger.
type core struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (c *core) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c *core) With(fs []zapcore.Field) zapcore.Core {
	return &core{log: c.log, fields: append(c.fields[:len(c.fields):len(c.fields)], fs...)}
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// simpleToken is said at every start, of a kind of authentication that nobody can
// use here: nothing listens.
const simpleToken = "simple token is not cryptographically signed"

func (c *core) Write(e zapcore.Entry, fs []zapcore.Field) error {
	if e.Message == simpleToken {
		return nil
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fs...) {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	c.log.LogAttrs(context.Background(), level, "etcd: "+e.Message, attrs...)
	return nil
}

func (c *core) Sync() error { return nil }
