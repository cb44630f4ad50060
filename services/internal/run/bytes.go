package run

import (
	"fmt"
	"math"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"
)

// Bytes is a size that flags and files give as "256MiB", "1 GB" or "4096".
// Never negative.
type Bytes int64

// String spells whole binary units exactly ("256MiB"), anything else in bytes.
func (b Bytes) String() string {
	for _, unit := range []struct {
		name string
		size Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b >= unit.size && b%unit.size == 0 {
			return fmt.Sprintf("%d%s", b/unit.size, unit.name)
		}
	}
	return fmt.Sprint(int64(b))
}

// Set parses a size; it is pflag's interface.
func (b *Bytes) Set(s string) error {
	n, err := humanize.ParseBytes(strings.TrimSpace(s))
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("%q is not a size such as 4096, 64KiB or 1GiB", s)
	}
	*b = Bytes(n)
	return nil
}

// Type is the word that help texts show.
func (b *Bytes) Type() string { return "size" }

// BytesVar binds a size to a flag.
func BytesVar(flags *pflag.FlagSet, p *Bytes, name string, value Bytes, usage string) {
	*p = value
	flags.Var(p, name, usage)
}
