// Package run is how a process of the house starts, is configured, and ends:
// task group, signals, configuration, logger, metrics registry, exit codes.
//
// It is the only room that reads flags, the environment and the configuration
// file. Nothing here is global: a main function makes what it needs and passes
// it on.
//
// # Configuration
//
// [Config] is the one struct. Each field is bound to one flag, and the flag's
// name is the whole rule for the other two ways to set it:
//
//	flag          --wal-budget 256MiB
//	environment   VARVE_WAL_BUDGET=256MiB
//	file          wal-budget: 256MiB
//
// The strongest is the flag, then the environment, then the file, then the
// default. An unknown key, a key given twice and a value that does not parse
// are errors that name the file and the line.
//
// # Tasks and signals
//
// [Group] owns goroutines: Wait returns when every task has returned, and the
// first error cancels the context that all of them share. [Signals] turns the
// first SIGINT or SIGTERM into a cancelled context, and a later second one into an
// immediate exit.
//
// # Exit codes
//
//	  0  clean
//	  1  an error
//	  2  usage or configuration: nothing was started
//	 74  storage failed: the log is poisoned, look at the disk before a restart
//	130  a second signal ended the process in the middle of its shutdown
package run
