package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
)

// maxLine is the longest line that becomes a record: the server's default limit
// for a value.
const maxLine = 1 << 20

// Corpus is a text of known lines: one base text, over and over, cut off after a
// number of lines. It holds the base text in memory and is immutable.
type Corpus struct {
	base   []byte
	starts []int // of each line of base, and the end
	Files  int
	Left   []string // files left out, and why

	Lines, Bytes int64
}

// LoadCorpus reads every .go file under root, in the order of their paths, and
// repeats them to at least minBytes and minLines.
func LoadCorpus(root string, minBytes, minLines int64) (*Corpus, error) {
	c := &Corpus{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(path, ".go") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(data) {
			if len(line) > maxLine {
				c.Left = append(c.Left, fmt.Sprintf("%s has a line of %d bytes, above the limit of a record", path, len(line)))
				return nil
			}
		}
		c.add(data)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the corpus: %w", err)
	}
	if len(c.starts) == 0 {
		return nil, fmt.Errorf("read the corpus: no .go file under %s", root)
	}
	c.repeat(minBytes, minLines)
	return c, nil
}

// add appends a file to the base text; a last line without an end gets one.
func (c *Corpus) add(data []byte) {
	c.Files++
	for line := range bytes.Lines(data) {
		c.starts = append(c.starts, len(c.base))
		c.base = append(c.base, line...)
	}
	if n := len(c.base); n > 0 && c.base[n-1] != '\n' {
		c.base = append(c.base, '\n')
	}
}

// repeat fixes how many lines the corpus has.
func (c *Corpus) repeat(minBytes, minLines int64) {
	size, lines := int64(len(c.base)), int64(len(c.starts))
	c.starts = append(c.starts, len(c.base))
	rounds := minBytes / size
	inRound := sort.SearchInts(c.starts, int(minBytes%size)) // the first line start at or after it
	c.Lines = max(rounds*lines+int64(inRound), minLines)
	c.Bytes = c.Position(c.Lines)
}

// Position is the byte at which line n (counted from 0) begins. It goes on
// beyond the corpus's own end.
func (c *Corpus) Position(n int64) int64 {
	lines := int64(len(c.starts) - 1)
	return n/lines*int64(len(c.base)) + int64(c.starts[n%lines])
}

// LineAt is the number of whole lines in the first n bytes.
func (c *Corpus) LineAt(n int64) int64 {
	size, lines := int64(len(c.base)), int64(len(c.starts)-1)
	i := sort.SearchInts(c.starts, int(n%size)+1) - 1
	return n/size*lines + int64(i)
}

// Text returns the bytes of lines [from, to).
func (c *Corpus) Text(from, to int64) io.Reader {
	at := c.Position(from)
	return &text{c.base, at, c.Position(to)}
}

type text struct {
	base    []byte
	at, end int64
}

func (t *text) Read(p []byte) (int, error) {
	if t.at >= t.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), t.end-t.at)]
	n := copy(p, t.base[t.at%int64(len(t.base)):])
	t.at += int64(n)
	return n, nil
}

// A Check is a writer that holds what it is given against a text that is
// expected, and sums both. It never fails: what differs is told at the end.
//
// It is safe for concurrent use, so that a command can write to it while
// somebody watches.
type Check struct {
	mu         sync.Mutex
	want       io.Reader
	seen       int64
	lines      int64
	difference string
	buffer     []byte
	sum        [2]shaSum
}

type shaSum interface {
	io.Writer
	Sum([]byte) []byte
}

// NewCheck expects want.
func NewCheck(want io.Reader) *Check {
	return &Check{want: want, buffer: make([]byte, 64<<10), sum: [2]shaSum{sha256.New(), sha256.New()}}
}

func (c *Check) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	whole := len(p)
	c.sum[0].Write(p)
	for len(p) > 0 {
		n, err := io.ReadFull(c.want, c.buffer[:min(len(p), len(c.buffer))])
		want := c.buffer[:n]
		c.sum[1].Write(want)
		if c.difference == "" {
			c.compare(p[:min(n, len(p))], want)
		}
		if err != nil {
			if c.difference == "" {
				c.difference = fmt.Sprintf("it goes on after line %d, where the text ends: %.60q", c.lines, p[n:])
			}
			c.seen += int64(len(p))
			return whole, nil
		}
		c.seen += int64(n)
		p = p[n:]
	}
	return whole, nil
}

func (c *Check) compare(got, want []byte) {
	if bytes.Equal(got, want) {
		c.lines += int64(bytes.Count(got, []byte{'\n'}))
		return
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	c.lines += int64(bytes.Count(got[:i], []byte{'\n'}))
	c.difference = fmt.Sprintf("line %d differs: %.60q instead of %.60q", c.lines, got[i:], want[i:])
}

// Bytes is how much was written.
func (c *Check) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// Lines is how many whole lines agreed.
func (c *Check) Lines() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines
}

// Prefix says that what was written differs from the beginning of the text, or
// nil.
func (c *Check) Prefix() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.prefix()
}

func (c *Check) prefix() error {
	if c.difference != "" {
		return errors.New(c.difference)
	}
	return nil
}

// Whole says that what was written is not the whole text, or nil. It reads the
// rest of the text.
func (c *Check) Whole() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest, err := io.Copy(c.sum[1], c.want)
	if err != nil {
		return err
	}
	if err := c.prefix(); err != nil {
		return err
	}
	if rest > 0 {
		return fmt.Errorf("it ends after line %d, %d bytes too early", c.lines, rest)
	}
	if got, want := c.sums(); got != want {
		return fmt.Errorf("the sums differ: %s, want %s", got, want)
	}
	return nil
}

// Sums are the SHA-256 of what was written and, after Whole, of the text.
func (c *Check) Sums() (got, want string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sums()
}

func (c *Check) sums() (got, want string) {
	return fmt.Sprintf("%x", c.sum[0].Sum(nil)), fmt.Sprintf("%x", c.sum[1].Sum(nil))
}
