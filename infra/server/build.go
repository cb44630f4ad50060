package server

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Build compiles the one binary into dir (made if missing) and returns its
// absolute path. It must be called in the module's root.
func Build(ctx context.Context, dir string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, "varve"))
	if err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "./services/varve").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build varve: %w\n%s", err, out)
	}
	return path, nil
}
