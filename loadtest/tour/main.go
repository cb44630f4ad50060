package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/varve-io/varve/infra/server"
)

func main() {
	once := flag.Bool("once", false, "end after the tour")
	data := flag.String("data", "varve-data", "data directory")
	listen := flag.String("listen", "127.0.0.1:4400", "address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := show(ctx, "bin", *data, *listen, *once); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

// show builds varve into bin and runs the tour on data and listen, in the module's
// root.
func show(ctx context.Context, bin, data, listen string, once bool) error {
	fmt.Println("building varve")
	binary, err := server.Build(ctx, bin)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	t := &Tour{binary: binary, data: data, listen: listen}
	if err := t.start(ctx); err != nil {
		return err
	}
	err = t.steps(ctx)
	if err == nil && !once {
		fmt.Printf("\nThe service goes on at http://%s, its state is in %s, its log in %s. Ctrl-C ends it.\n", listen, data, t.log())
		select {
		case <-ctx.Done():
		case <-t.server.Done():
			return fmt.Errorf("the service ended by itself: see %s", t.log())
		}
	}
	patient, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	return errors.Join(err, t.server.Stop(patient))
}

// A Tour shows the service to somebody who reads along.
type Tour struct {
	binary, data, listen string
	server               *server.Process
}

func (t *Tour) log() string { return filepath.Join(t.data, "server.log") }

func (t *Tour) start(ctx context.Context) (err error) {
	t.server, err = server.Start(ctx, server.Options{
		Binary: t.binary,
		// Records become objects after two seconds here, so that a short tour sees it.
		Args:    []string{"dev", "--data", t.data, "--listen", t.listen, "--segment-age", "2s"},
		Address: t.listen,
		Log:     t.log(),
	})
	return err
}
