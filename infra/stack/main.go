package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/varve-io/varve/infra/minio"
	"github.com/varve-io/varve/infra/server"
)

const (
	folder    = ".stack"
	config    = "infra/stack/varve.yaml"
	bucket    = "varve"
	minioPort = 9100
	address   = "127.0.0.1:4400"
	// Of a server on loopback that holds nothing but local tests.
	accessKey, secretKey = "varve-local", "varve-local-secret"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	verb := ""
	if len(os.Args) == 2 {
		verb = os.Args[1]
	}
	var err error
	switch verb {
	case "up":
		err = up(ctx)
	case "down":
		err = errors.Join(end(pidFile("varve"), 40*time.Second), end(pidFile("minio"), 20*time.Second))
	case "status":
		status()
	default:
		fmt.Fprintln(os.Stderr, "usage: go run ./infra/stack up|down|status")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

func pidFile(name string) string { return filepath.Join(folder, name+".pid") }

func up(ctx context.Context) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if pid := alive(pidFile("minio")); pid == 0 {
		if err := startMinIO(ctx); err != nil {
			return err
		}
	}
	if pid := alive(pidFile("varve")); pid == 0 {
		if err := startVarve(ctx); err != nil {
			return err
		}
	}
	status()
	return nil
}

func startMinIO(ctx context.Context) error {
	fmt.Println("starting MinIO (installing it takes a few minutes the first time)")
	store, err := minio.Start(ctx, minio.Options{
		Dir: filepath.Join(folder, "minio"), Port: minioPort, AccessKey: accessKey, SecretKey: secretKey,
		Log: filepath.Join(folder, "minio.log"), Detached: true,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(store.MakeBucket(ctx, bucket), note(pidFile("minio"), store.PID())); err != nil {
		store.Kill()
		return err
	}
	return nil
}

func startVarve(ctx context.Context) error {
	fmt.Println("building and starting varve")
	binary, err := server.Build(ctx, folder)
	if err != nil {
		return err
	}
	p, err := server.Start(ctx, server.Options{
		Binary: binary, Args: []string{"server", "--config", config},
		Env:     []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey},
		Address: address, Log: filepath.Join(folder, "varve.log"),
	})
	if err != nil {
		return err
	}
	if err := note(pidFile("varve"), p.PID()); err != nil {
		p.Kill()
		return err
	}
	return nil
}

func status() {
	for _, part := range []struct{ name, where string }{
		{"varve", "http://" + address},
		{"minio", fmt.Sprintf("http://127.0.0.1:%d  bucket %s, access key %s, secret key %s", minioPort, bucket, accessKey, secretKey)},
	} {
		if pid := alive(pidFile(part.name)); pid != 0 {
			fmt.Printf("%-6s pid %-7d %s  log %s\n", part.name, pid, part.where, filepath.Join(folder, part.name+".log"))
		} else {
			fmt.Printf("%-6s not running\n", part.name)
		}
	}
}
