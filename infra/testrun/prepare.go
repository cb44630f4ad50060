package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/varve-io/varve/infra/minio"
)

// prepare sees to it that tests can run here: a C compiler for the race
// detector and a MinIO for the object store. It says what it installs.
func prepare(ctx context.Context) error {
	if err := compiler(ctx); err != nil {
		return err
	}
	fmt.Println("looking for MinIO, which is built with go install when it is missing (a few minutes)")
	if _, err := minio.Install(ctx); err != nil {
		return fmt.Errorf("tests need a real MinIO, which could not be had: %w", err)
	}
	return nil
}

// compiler makes sure of the C compiler that `go env CC` names.
func compiler(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "env", "CC").Output()
	if err != nil {
		return fmt.Errorf("go env CC: %w", err)
	}
	cc, _, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if _, err := exec.LookPath(cc); err == nil {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Getuid() != 0 {
		return fmt.Errorf("the race detector needs a C compiler (%s): install one, for example with `apt-get install gcc libc6-dev`", cc)
	}
	fmt.Println("installing gcc for the race detector")
	for _, args := range [][]string{{"update", "-q"}, {"install", "-q", "-y", "--no-install-recommends", "gcc", "libc6-dev"}} {
		command := exec.CommandContext(ctx, "apt-get", args...)
		command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}
