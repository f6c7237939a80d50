package etcdbackend

import (
	"testing"

	"example.com/distlock/internal/guarantees"
	"example.com/distlock/internal/testbed"
)

func TestGuarantees(t *testing.T) {
	h := newHarness(t, testbed.Etcd(t, 1))
	guarantees.Check(t, h, &restartHarness{harness: h})
}
