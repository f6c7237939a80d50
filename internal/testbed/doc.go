// Package testbed starts real servers for tests, benchmarks and examples: Redis
// (one, several, or a primary with its replica), ZooKeeper and etcd (one server
// or an ensemble). It can pause, kill, restart and isolate them.
//
// # Providers
//
// The environment variable DISTLOCK_TESTBED (or [Config.Provider]) chooses where
// servers come from:
//
//   - processes: redis-server, java with ZooKeeper's jars, and etcd run as local
//     processes on free loopback ports, with their data in a temporary directory.
//     `make deps` installs what is missing.
//   - containers: a container engine runs them on the host's network. The images
//     come from a registry or, without one, from `make images`.
//   - external: servers that run already, at the addresses in
//     DISTLOCK_TESTBED_REDIS (one or more, separated by commas),
//     DISTLOCK_TESTBED_REDIS_PAIR (primary,replica), DISTLOCK_TESTBED_ZOOKEEPER
//     and DISTLOCK_TESTBED_ETCD. They can be reached through a fault proxy but
//     not paused, killed or restarted.
//   - auto, the default: containers if an engine answers and has or can get the
//     images, else processes.
//
// # Tests
//
// [Redis], [RedisNodes], [RedisPair], [ZooKeeper] and [Etcd] give a test its
// servers. They are shared by all tests of the binary unless [Own] asks for
// servers that the test may stop; tests on shared servers keep apart by the names
// that [Name] makes. A package that uses them has
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
//
// If a server cannot be had because something is not installed, the test is
// skipped with the name of what is missing and the command that installs it; with
// DISTLOCK_REQUIRE_SERVERS=1 it fails instead.
//
// # Programs
//
// A program calls [Open], and Close when it is done. Servers also end when the
// program is killed: a small shell process outlives it for as long as it takes to
// stop them and to remove their files. For containers it needs the docker command;
// without it they stay until a later bed takes the same directory.
package testbed
