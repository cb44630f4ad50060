package report

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-isatty"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Progress tells of one stretch of work whose size is known.
type Progress struct {
	name  string
	total int64
	spell func(int64) string
	out   io.Writer

	bars *mpb.Progress // nil in a pipe
	bar  *mpb.Bar

	mu   sync.Mutex
	said time.Time // when the last plain line was written
}

// every is how long a pipe is left alone between two lines.
const every = 10 * time.Second

// NewProgress starts telling on out of work of total bytes, at least 1.
func NewProgress(out io.Writer, name string, total int64) *Progress {
	return start(out, name, total, decor.CountersKibiByte("% .1f / % .1f"), func(n int64) string { return humanize.IBytes(uint64(n)) })
}

// NewCount starts telling on out of work of total things, at least 1.
func NewCount(out io.Writer, name string, total int64) *Progress {
	return start(out, name, total, decor.CountersNoUnit("%d / %d"), func(n int64) string { return fmt.Sprint(n) })
}

func start(out io.Writer, name string, total int64, counters decor.Decorator, spell func(int64) string) *Progress {
	p := &Progress{name: name, total: total, spell: spell, out: out, said: time.Now()}
	if f, ok := out.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		p.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(50))
		p.bar = p.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name(name, decor.WC{W: 24, C: decor.DindentRight})),
			mpb.AppendDecorators(counters, decor.Percentage(decor.WC{W: 6})))
	}
	return p
}

// At says that so much is done.
func (p *Progress) At(done int64) {
	if p.bar != nil {
		p.bar.SetCurrent(min(done, p.total-1)) // full means over: End says that
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.said) >= every {
		p.said = time.Now()
		fmt.Fprintf(p.out, "  %s: %s of %s, %d %%\n", p.name, p.spell(done), p.spell(p.total), 100*done/max(p.total, 1))
	}
}

// Say writes a line of its own, above the bar on a terminal.
func (p *Progress) Say(format string, args ...any) {
	line := fmt.Sprintf("  "+format+"\n", args...)
	if p.bars != nil {
		_, _ = io.WriteString(p.bars, line) // a lost line of progress loses nothing
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.out, line)
}

// End takes the bar away: complete, or as it stands when the work broke off.
func (p *Progress) End(complete bool) {
	if p.bar == nil {
		return
	}
	if complete {
		p.bar.SetCurrent(p.total)
	} else {
		p.bar.Abort(false)
	}
	p.bars.Wait()
}
