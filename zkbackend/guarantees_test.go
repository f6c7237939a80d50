package zkbackend

import (
	"testing"

	"example.com/distlock/internal/guarantees"
)

func TestGuarantees(t *testing.T) {
	guarantees.Check(t, newHarness(t))
}
