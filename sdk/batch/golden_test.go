package batch

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The bytes of level 1, for ever. Compressed batches are golden for reading only:
// another release of the compressor may pack them otherwise.
func TestGolden(t *testing.T) {
	records := samples()[:3]
	for name, b := range map[string][]byte{
		"plain":    encode(t, records, None, NoProducer()),
		"producer": encode(t, records, None, Producer{ID: 1 << 60, Epoch: 3, Sequence: 9}),
		"zstd":     encode(t, []Record{{Value: bytes.Repeat([]byte("abcd"), 100), Time: 1}}, Zstd, NoProducer()),
	} {
		SetBase(b, 0x0102030405060708, 5)
		file := "testdata/" + name + ".hex"
		if *update {
			var text strings.Builder
			for _, digit := range hex.EncodeToString(b) {
				text.WriteRune(digit)
				if text.Len()%65 == 64 {
					text.WriteByte('\n')
				}
			}
			if err := os.WriteFile(file, []byte(text.String()+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		golden, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil {
			t.Fatal(err)
		}
		if name != "zstd" && !bytes.Equal(golden, b) {
			t.Errorf("%s is encoded otherwise than before:\n%x", name, b)
		}
		info, err := new(Codec).Validate(golden, 0)
		if err != nil {
			t.Fatal(name, err)
		}
		again := encode(t, collect(t, golden), None, info.Producer)
		plain := encode(t, collect(t, b), None, info.Producer)
		if !bytes.Equal(again, plain) {
			t.Errorf("%s reads otherwise than before", name)
		}
	}
}
