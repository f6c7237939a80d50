package conformance_test

import (
	"testing"

	"example.com/distlock/internal/guarantees"
	"example.com/distlock/membackend"
)

func TestGuarantees(t *testing.T) {
	guarantees.Check(t, newMemory(membackend.Options{}))
}
