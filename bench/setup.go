package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Setup says on what and how the figures were taken.
type Setup struct {
	Date     time.Time     `json:"date"`
	Took     time.Duration `json:"took_ns"`
	CPU      string        `json:"cpu"`
	Cores    int           `json:"cores"` // that this program may use; the servers share them
	OS       string        `json:"os"`
	Load     string        `json:"load"` // load average of the last minute before the start
	Go       string        `json:"go"`
	Revision string        `json:"revision,omitempty"` // of this module, if it is known
	Fsync    time.Duration `json:"fsync_ns,omitempty"` // of a small write to the servers' disk, median; 0 if it is not known

	Provider string            `json:"provider"` // of the servers
	Clients  map[string]string `json:"clients"`  // client libraries and versions

	Duration time.Duration `json:"duration_ns"` // of each closed loop, without its warm-up
	TTL      time.Duration `json:"ttl_ns"`      // in the closed loops, as asked for
	CrashTTL time.Duration `json:"crash_ttl_ns"`
}

func describe(date time.Time) Setup {
	s := Setup{
		Date: date, CPU: cpuModel(), Cores: runtime.GOMAXPROCS(0), OS: system(),
		Load: loadAverage(), Go: runtime.Version(), Clients: map[string]string{},
	}
	s.Revision = revision()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return s
	}
	for _, d := range info.Deps {
		switch d.Path {
		case "github.com/redis/go-redis/v9", "github.com/go-zookeeper/zk", "go.etcd.io/etcd/client/v3":
			s.Clients[d.Path] = d.Version
		}
	}
	return s
}

// revision is what git describe says of the source that this program was built
// from, or else what the build noted: "go run" notes nothing.
func revision() string {
	if root, ok := sourceRoot(); ok {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--tags", "--dirty=+changes").Output()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return ""
}

// fsyncTime is the median time of a write of 4 KiB to a file of dir until it is
// on the disk: what a durable server waits for at least.
func fsyncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "distlock-fsync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var times []time.Duration
	for range 21 {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage tells whether other work ran beside the benchmark.
func loadAverage() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	minute, _, _ := strings.Cut(string(load), " ")
	return minute
}

func system() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(runtime.GOOS + " " + string(bytes.TrimSpace(release)))
}

// onLoopback reports whether no network is between us and the servers.
func onLoopback(addrs []string) bool {
	for _, a := range addrs {
		_, hostPort, ok := strings.Cut(a, "://") // etcd takes URLs
		if !ok {
			hostPort = a
		}
		host, _, err := net.SplitHostPort(hostPort)
		if err != nil {
			return false
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

var titles = map[string]string{
	"memory": "in memory", "redis": "Redis", "redlock": "Redlock", "zookeeper": "ZooKeeper", "etcd": "etcd",
}

func title(backend string) string { return cmp.Or(titles[backend], backend) }
