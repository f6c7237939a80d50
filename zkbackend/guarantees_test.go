package zkbackend

import (
	"testing"

	"example.com/distlock/internal/guarantees"
	"example.com/distlock/internal/testbed"
)

func TestGuarantees(t *testing.T) {
	h := newHarness(t, testbed.ZooKeeper(t, 1))
	guarantees.Check(t, h, &restartHarness{h})
}
