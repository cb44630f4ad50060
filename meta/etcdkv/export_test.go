package etcdkv

// OnSyncDir calls f in place of syncing a folder.
func (o *Options) OnSyncDir(f func(path string) error) { o.syncDir = f }
