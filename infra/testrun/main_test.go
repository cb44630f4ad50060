package main

import (
	"slices"
	"testing"
)

func TestSplitByRaceDetector(t *testing.T) {
	plain, race := split([]string{module + "/wal", module + "/wal/vfs", module + "/walrus", module + "/services/internal/edge", module + "/services/internal/cli"})
	if !slices.Equal(race, []string{module + "/wal", module + "/wal/vfs", module + "/services/internal/edge"}) {
		t.Errorf("under the race detector: %v", race)
	}
	if !slices.Equal(plain, []string{module + "/walrus", module + "/services/internal/cli"}) {
		t.Errorf("without: %v", plain)
	}
}
