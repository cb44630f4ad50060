package run

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Logger makes the process's structured logger on w. Level is debug, info, warn
// or error; format is text or json.
func Logger(w io.Writer, level, format string) (*slog.Logger, error) {
	options := &slog.HandlerOptions{}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, &UsageError{fmt.Errorf("log level %q is none of debug, info, warn, error", level)}
	}
	options.Level = l
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, &UsageError{fmt.Errorf("log format %q is neither text nor json", format)}
	}
}

// Registry makes a fresh metrics registry with the collectors of the Go runtime
// and the process.
func Registry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return registry
}
