package run

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix starts the name of every environment variable of ours.
const EnvPrefix = "VARVE_"

// EnvName is the environment variable of a flag: "wal-budget" is
// "VARVE_WAL_BUDGET".
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Load fills flags that the command line left alone: from the environment
// (lookup, usually os.LookupEnv), then from the YAML file at path ("" for none).
// Call it after the command line was parsed. Errors are [UsageError]s and name
// the variable, or the file and line.
//
// An environment variable that no flag of this command has is not an error: it
// may belong to another command.
func Load(flags *pflag.FlagSet, lookup func(string) (string, bool), path string) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookup(EnvName(f.Name))
		if !ok || f.Changed || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = &UsageError{fmt.Errorf("environment variable %s: %w", EnvName(f.Name), err)}
		}
	})
	if failed != nil || path == "" {
		return failed
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return &UsageError{fmt.Errorf("configuration file: %w", err)}
	}
	if err := loadFile(flags, path, data); err != nil {
		return &UsageError{err}
	}
	return nil
}

func loadFile(flags *pflag.FlagSet, path string, data []byte) error {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document in the file", path)
	}
	if len(document.Content) == 0 {
		return nil // an empty file
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want lines of the form \"key: value\"", path, root.Line)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		flag := flags.Lookup(key.Value)
		if flag == nil || key.Value == "config" || key.Value == "help" {
			return fmt.Errorf("%s:%d: unknown key %q%s", path, key.Line, key.Value, suggest(flags, key.Value))
		}
		if line, twice := seen[key.Value]; twice {
			return fmt.Errorf("%s:%d: %q was given on line %d already", path, key.Line, key.Value, line)
		}
		seen[key.Value] = key.Line
		text, err := scalar(value)
		if err != nil {
			return fmt.Errorf("%s:%d: %s: %w", path, value.Line, key.Value, err)
		}
		if flag.Changed {
			continue // the command line or the environment said it
		}
		if err := flags.Set(key.Value, text); err != nil {
			return fmt.Errorf("%s:%d: %w", path, value.Line, err)
		}
	}
	return nil
}

// scalar is a value as a flag would be given it; a list becomes a,b,c.
func scalar(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", errors.New("the value is missing")
		}
		return n.Value, nil
	case yaml.SequenceNode:
		items := make([]string, len(n.Content))
		for i, item := range n.Content {
			text, err := scalar(item)
			if err != nil || item.Kind != yaml.ScalarNode {
				return "", errors.New("want a list of plain values")
			}
			items[i] = text
		}
		return strings.Join(items, ","), nil
	default:
		return "", errors.New("want a plain value or a list")
	}
}

// suggest names the known key that shares the longest beginning.
func suggest(flags *pflag.FlagSet, unknown string) string {
	best, length := "", 2
	normal := strings.ReplaceAll(strings.ToLower(unknown), "_", "-")
	flags.VisitAll(func(f *pflag.Flag) {
		if n := common(normal, f.Name); n > length {
			best, length = f.Name, n
		}
	})
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
