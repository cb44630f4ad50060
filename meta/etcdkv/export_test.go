package etcdkv

import "go.uber.org/zap"

// Refusal is what a start says when etcd stops with a message and an error.
func Refusal(dir, message string, why error) error {
	f := &failure{done: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		logger(Options{}.withDefaults().Log, f).Fatal(message, zap.Error(why))
	}()
	<-ended
	return damaged(dir, f.err)
}

// OnSyncDir calls f in place of syncing a folder.
func (o *Options) OnSyncDir(f func(path string) error) { o.syncDir = f }
