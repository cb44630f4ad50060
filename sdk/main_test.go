package sdk

import (
	"testing"

	"go.uber.org/goleak"
)

// No goroutine of the package outlives its owner (row C5's client side).
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
