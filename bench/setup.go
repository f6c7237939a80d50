package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"net"
	"os"
	"runtime"
	"runtime/debug"
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
	Revision string        `json:"revision,omitempty"`

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
	for _, kv := range info.Settings {
		switch {
		case kv.Key == "vcs.revision":
			s.Revision = kv.Value[:min(12, len(kv.Value))] + s.Revision
		case kv.Key == "vcs.modified" && kv.Value == "true":
			s.Revision += " (modified)"
		}
	}
	return s
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
