package etcdkv

func check(dir string) error { return nil }
