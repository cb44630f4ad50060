package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// The file run-state says how the last process on the directory ended, if it
// lived to say so. It is text:
//
//	varve-run-state 1
//	state running | stopped | poisoned
//	storage <32 hex digits>
//	mode commit | periodic
//	boot <the kernel's boot id, or - when unknown>
//	start <start count>
//	end <position of the log's end; 0 unless stopped>
//	crc <CRC32C of all before, 8 hex digits>
//
// The states, and who writes them:
//
//	            identity.commit              identity.stop
//	(none) ----------------------> running ----------------> stopped
//	                                  |  ^                      |
//	             identity.markPoisoned|  |identity.commit       |
//	                                  v  |                      |
//	                               poisoned <---- (never) ------+--> running
const (
	runStateFile  = "run-state"
	runStateMagic = "varve-run-state 1\n"
	maxBootID     = 64
)

type runPhase uint8

const (
	phaseRunning runPhase = iota
	phaseStopped
	phasePoisoned
)

var runPhases = [...]string{phaseRunning: "running", phaseStopped: "stopped", phasePoisoned: "poisoned"}

// runState is the content of the file run-state.
type runState struct {
	Phase   runPhase
	Storage meta.StorageID
	Mode    Mode
	Boot    string // empty when unknown
	Start   uint64 // counts the starts of this storage id
	End     Position
}

func (r runState) encode() []byte {
	boot := r.Boot
	if boot == "" {
		boot = "-"
	}
	return sealText(fmt.Sprintf("%sstate %s\nstorage %s\nmode %s\nboot %s\nstart %d\nend %d\ncrc ",
		runStateMagic, runPhases[r.Phase], r.Storage, r.Mode, boot, r.Start, r.End))
}

// decodeRunState is the strict inverse of encode. Errors are [meta.ErrCorrupt].
func decodeRunState(b []byte) (runState, error) {
	bad := func(what string) (runState, error) {
		return runState{}, meta.Errorf(meta.ErrCorrupt, "%s", what)
	}
	s, err := openText(b)
	if err != nil {
		return runState{}, err
	}
	s, ok := strings.CutPrefix(s, runStateMagic)
	if !ok {
		return bad("is not a run state of a version that this build reads")
	}
	var r runState
	var value [6]string
	for i, key := range [...]string{"state ", "storage ", "mode ", "boot ", "start ", "end "} {
		line, rest, ok := strings.Cut(s, "\n")
		if value[i], ok = strings.CutPrefix(line, key); !ok {
			return bad("has no line " + key)
		}
		s = rest
	}
	switch value[0] {
	case "running":
		r.Phase = phaseRunning
	case "stopped":
		r.Phase = phaseStopped
	case "poisoned":
		r.Phase = phasePoisoned
	default:
		return bad("has an unknown state")
	}
	if value[2] == Periodic.String() {
		r.Mode = Periodic
	}
	if value[3] != "-" {
		r.Boot = value[3]
	}
	storage, err1 := meta.ParseStorageID(value[1])
	start, err2 := strconv.ParseUint(value[4], 10, 64)
	end, err3 := strconv.ParseUint(value[5], 10, 64)
	r.Storage, r.Start, r.End = storage, start, Position(end)
	if err := errors.Join(err1, err2, err3); err != nil || r.Boot != cleanBootID(r.Boot) || string(r.encode()) != string(b) {
		return bad("holds values that no broker writes")
	}
	return r, nil
}

// readRunState reads the run state; nil, with the reason, when it is missing or
// unreadable. An error is the disk's.
func readRunState(fsys vfs.FS, dir string) (*runState, string, error) {
	b, err := vfs.ReadFile(fsys, path.Join(dir, runStateFile), maxSmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "run-state is missing", nil
	}
	if err != nil {
		return nil, "", err
	}
	r, err := decodeRunState(b)
	if err != nil {
		return nil, "run-state is unreadable: it " + err.Error(), nil
	}
	return &r, "", nil
}

func writeRunState(fsys vfs.FS, dir string, r runState) error {
	return vfs.WriteFile(fsys, path.Join(dir, runStateFile), r.encode())
}

// BootID returns the kernel's id of this boot of the machine, or "" where there
// is none; two unknown boots are never the same one.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return cleanBootID(strings.TrimSpace(string(b)))
}

// cleanBootID returns the id, or "" (unknown) if it can't stand in a line of text.
func cleanBootID(s string) string {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return ""
		}
	}
	if len(s) > maxBootID || s == "-" {
		return ""
	}
	return s
}

// The witness is a file in the runtime directory that says: a process of this
// storage id runs, or died, in periodic mode on this boot, and no flush of its
// failed. It is text:
//
//	varve-witness 1 <storage id> <boot id> <mount of the data directory> <CRC32C>
//
// It lies outside the data's disk, where it can be taken away even when that disk
// fails, and where a reboot takes it away too.
type witness struct {
	fs      vfs.FS
	dir     string // empty: there is none, and nothing is ever believed
	dataDir string
	boot    string
}

func (w *witness) name(id meta.StorageID) string {
	return path.Join(w.dir, "varve-"+id.String()+".witness")
}

// content is what the file of that id must hold; "" when no file can be a witness.
func (w *witness) content(id meta.StorageID) (string, error) {
	if w.dir == "" || w.boot == "" {
		return "", nil
	}
	mount, err := w.fs.Mount(w.dataDir)
	if err != nil {
		return "", fmt.Errorf("asking for the mount of %s: %w", w.dataDir, err)
	}
	return string(sealText(fmt.Sprintf("varve-witness 1 %s %s %s ", id, w.boot, mount))), nil
}

// stands reports whether the witness of that id is there.
func (w *witness) stands(id meta.StorageID) (bool, error) {
	want, err := w.content(id)
	if err != nil || want == "" {
		return false, err
	}
	got, err := vfs.ReadFile(w.fs, w.name(id), maxSmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return string(got) == want, err
}

// set writes the witness of that id. Without a place for it, it does nothing.
func (w *witness) set(id meta.StorageID) error {
	s, err := w.content(id)
	if err != nil || s == "" {
		return err
	}
	if err := w.fs.MkdirAll(w.dir); err != nil {
		return fmt.Errorf("making the runtime directory: %w", err)
	}
	return vfs.WriteFile(w.fs, w.name(id), []byte(s))
}

// take removes the witness of that id. It needs no sync: who asks next on this
// boot sees it gone, and no other boot believes it.
func (w *witness) take(id meta.StorageID) error {
	if w.dir == "" {
		return nil
	}
	if err := w.fs.Remove(w.name(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("taking away the witness: %w", err)
	}
	return nil
}
