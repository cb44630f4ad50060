package run

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/varve-io/varve/meta"
)

// Config is everything a server can be told. See [Config.Bind] for the flags.
type Config struct {
	Broker    string // this process's place in the cluster
	Data      string // data directory
	Runtime   string // directory outside the data disk that a reboot empties; holds the witness of a running log
	Ephemeral bool   // dev only: a data directory that is removed at the end

	Listen   string // the one public address
	Admin    string // address of metrics and profiles; empty: metrics on Listen, no profiles
	Insecure bool   // the explicit word for listening beyond loopback without TLS and tokens

	// Objects is the bucket's URL, s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME] or dir:///PATH; empty means
	// the directory objects under Data. Credentials come from the AWS chain (AWS_ACCESS_KEY_ID, a profile, ...).
	Objects string

	Fsync         string        // commit or periodic
	FsyncInterval time.Duration // of periodic
	WALBudget     Bytes         // most bytes the log may take on disk
	WALFileSize   Bytes         // size of one log file; 0: chosen from the budget
	SegmentSize   Bytes         // a segment is sealed at this size
	SegmentAge    time.Duration // or at this age
	CacheMemory   Bytes         // blocks of sealed segments kept in memory
	SweepInterval time.Duration // between two looks for garbage in the bucket
	SweepGrace    time.Duration // how long running reads keep a retired object

	AutoCreate      bool          // namespaces come into being with their first stream, streams with their first append
	ShutdownTimeout time.Duration // how long a graceful stop may take
	LogLevel        string        // debug, info, warn, error
	LogFormat       string        // text, json
}

// minWALBudget holds the fewest log files, each of which holds the largest frame.
const minWALBudget Bytes = 64 << 20

// Bind registers every flag on flags and fills c with the defaults.
func (c *Config) Bind(flags *pflag.FlagSet) {
	flags.StringVar(&c.Broker, "broker", "broker-1", "name of this broker in the cluster")
	flags.StringVar(&c.Data, "data", "varve-data", "data directory")
	flags.StringVar(&c.Runtime, "runtime-dir", "", "directory on another disk that a reboot empties (default: $XDG_RUNTIME_DIR or /run)")
	flags.StringVar(&c.Listen, "listen", "127.0.0.1:4400", "address to listen on")
	flags.StringVar(&c.Admin, "admin-listen", "", "address for metrics and profiles (default: metrics on --listen)")
	flags.BoolVar(&c.Insecure, "insecure", false, "allow an address beyond loopback without TLS and tokens")
	flags.StringVar(&c.Objects, "objects", "", "bucket: s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME] or dir:///PATH (default: the directory objects under --data)")
	flags.StringVar(&c.Fsync, "fsync", "commit", "commit: on disk before acknowledged; periodic: flushed every --fsync-interval")
	flags.DurationVar(&c.FsyncInterval, "fsync-interval", 250*time.Millisecond, "of --fsync periodic")
	BytesVar(flags, &c.WALBudget, "wal-budget", 1<<30, "most bytes the write-ahead log may take on disk")
	BytesVar(flags, &c.WALFileSize, "wal-file-size", 0, "size of one log file (default: from the budget)")
	BytesVar(flags, &c.SegmentSize, "segment-size", 64<<20, "a segment is sealed at this size")
	flags.DurationVar(&c.SegmentAge, "segment-age", 10*time.Minute, "or when its oldest record is this old")
	BytesVar(flags, &c.CacheMemory, "cache-memory", 128<<20, "blocks of sealed segments kept in memory")
	flags.DurationVar(&c.SweepInterval, "sweep-interval", time.Minute, "between two looks for garbage in the bucket")
	flags.DurationVar(&c.SweepGrace, "sweep-grace", 10*time.Minute, "how long running reads keep an object that was retired")
	flags.BoolVar(&c.AutoCreate, "auto-create", false, "namespaces come into being with their first stream, streams with their first append")
	flags.DurationVar(&c.ShutdownTimeout, "shutdown-timeout", 30*time.Second, "how long a graceful stop may take")
	c.BindLog(flags)
}

// BindLog registers the flags of the logger alone, for programs that are not
// servers.
func (c *Config) BindLog(flags *pflag.FlagSet) {
	flags.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&c.LogFormat, "log-format", "text", "text or json")
}

// Validate checks what no flag can check alone. The error is a [UsageError].
func (c *Config) Validate() error {
	if err := c.validate(); err != nil {
		return &UsageError{err}
	}
	return nil
}

func (c *Config) validate() error {
	if err := meta.BrokerID(c.Broker).Validate(); err != nil {
		return fmt.Errorf("--broker: %w", err)
	}
	if c.Data == "" {
		return fmt.Errorf("--data is empty: name a directory")
	}
	if c.Fsync != "commit" && c.Fsync != "periodic" {
		return fmt.Errorf("--fsync is %q: it is commit or periodic", c.Fsync)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"fsync-interval", c.FsyncInterval}, {"segment-age", c.SegmentAge},
		{"sweep-interval", c.SweepInterval}, {"shutdown-timeout", c.ShutdownTimeout},
	} {
		if d.value <= 0 {
			return fmt.Errorf("--%s is %v: it must be above 0", d.flag, d.value)
		}
	}
	if c.SweepGrace < 0 {
		return fmt.Errorf("--sweep-grace is %v: it must not be negative", c.SweepGrace)
	}
	if c.SegmentSize < 1<<20 {
		return fmt.Errorf("--segment-size is %v: it must be at least 1MiB", c.SegmentSize)
	}
	if c.WALBudget < minWALBudget {
		return fmt.Errorf("--wal-budget is %v: it must be at least %v", c.WALBudget, minWALBudget)
	}
	if u, err := url.Parse(c.Objects); err != nil {
		return fmt.Errorf("--objects: %w", err)
	} else if c.Objects != "" && u.Scheme != "dir" && u.Scheme != "s3" {
		return fmt.Errorf("--objects is %q: it begins with s3:// or dir://", c.Objects)
	}
	for _, address := range []struct{ flag, value string }{{"listen", c.Listen}, {"admin-listen", c.Admin}} {
		if address.value == "" && address.flag == "admin-listen" {
			continue
		}
		if err := checkAddress(address.value, c.Insecure); err != nil {
			return fmt.Errorf("--%s: %w", address.flag, err)
		}
	}
	return nil
}

// checkAddress refuses what would be open by accident.
func checkAddress(address string, insecure bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT: %w", address, err)
	}
	if insecure || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%q is reachable from other machines, and anyone there could read and write; say --insecure if that is what you want", address)
}

// ObjectsOrDefault is Objects, or the URL of the directory under Data when it is
// empty.
func (c *Config) ObjectsOrDefault() (string, error) {
	if c.Objects != "" {
		return c.Objects, nil
	}
	path, err := filepath.Abs(filepath.Join(c.Data, "objects"))
	return (&url.URL{Scheme: "dir", Path: path}).String(), err
}
