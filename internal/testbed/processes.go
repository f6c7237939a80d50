package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// processes runs servers as local processes.
type processes struct {
	slot *slot
}

func (p *processes) describe() string { return "local processes" }

func (p *processes) close() error { return nil }

func (p *processes) launch(ctx context.Context, s *spec) (instance, error) {
	pr := &process{
		spec: s,
		dir:  filepath.Join(p.slot.dir, s.name),
		pids: filepath.Join(p.slot.dir, "pids"),
	}
	var err error
	if pr.program, err = program(ctx, s); err != nil {
		return nil, err
	}
	if err := pr.writeFiles(); err != nil {
		return nil, err
	}
	return pr, pr.start(ctx)
}

// program finds what runs a kind of server: the command and the arguments that
// come before the server's own.
func program(ctx context.Context, s *spec) ([]string, error) {
	switch s.kind {
	case kindRedis:
		path, err := exec.LookPath("redis-server")
		if err != nil {
			return nil, missing("Redis", "redis-server is not in PATH", "apt-get install redis-server")
		}
		return []string{path}, nil
	case kindZooKeeper:
		java, err := findJava()
		if err != nil {
			return nil, missing("ZooKeeper", "java is not in PATH", "apt-get install default-jre-headless")
		}
		cp := zookeeperClassPath()
		if cp == "" {
			return nil, missing("ZooKeeper", "its jars were not found", "apt-get install zookeeper")
		}
		argv := append([]string{java}, strings.Fields(s.jvm)...)
		return append(argv,
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
			"-cp", cp, "org.apache.zookeeper.server.quorum.QuorumPeerMain"), nil
	case kindEtcd:
		path, err := EtcdBinary(ctx)
		if err != nil {
			return nil, err
		}
		return []string{path}, nil
	}
	return nil, fmt.Errorf("testbed: unknown kind of server %q", s.kind)
}

func missing(what, why, command string) error {
	return &MissingError{What: what, Why: why, Help: "run `make deps` (" + command + ")"}
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if path, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			return path, nil
		}
	}
	return exec.LookPath("java")
}

// zookeeperClassPath looks where Debian's package, a Homebrew keg and an
// unpacked release keep the jars. Debian's zookeeper.jar names the jars it needs
// in its manifest, but for one that logs to standard error.
func zookeeperClassPath() string {
	if cp := os.Getenv("DISTLOCK_ZOOKEEPER_CLASSPATH"); cp != "" {
		return cp
	}
	const debian = "/usr/share/java/"
	if exists(debian + "zookeeper.jar") {
		return debian + "zookeeper.jar:" + debian + "slf4j-simple.jar"
	}
	for _, dir := range []string{
		os.Getenv("ZOOKEEPER_HOME") + "/lib",
		"/opt/homebrew/opt/zookeeper/libexec/lib",
		"/usr/local/opt/zookeeper/libexec/lib",
		"/opt/zookeeper/lib",
	} {
		if jars, _ := filepath.Glob(filepath.Join(dir, "zookeeper-*.jar")); len(jars) > 0 {
			return filepath.Join(dir, "*")
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// process is a server that runs as a local process.
type process struct {
	spec    *spec
	dir     string
	pids    string
	program []string

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended

	mu  sync.Mutex
	err error // how cmd ended
}

func (p *process) writeFiles() error {
	if err := os.MkdirAll(filepath.Join(p.dir, "data"), 0o700); err != nil {
		return err
	}
	if p.spec.files == nil {
		return nil
	}
	for name, text := range p.spec.files(p.dir) {
		path := filepath.Join(p.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) logFile() string { return filepath.Join(p.dir, "log") }

func (p *process) start(context.Context) error {
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// The shell becomes the server after it has written down the process id for
	// the janitor, so that no moment is left in which a server could be forgotten.
	argv := append([]string{"-c", `: > "$0/$$" && exec "$@"`, p.pids}, p.program...)
	cmd := exec.Command("/bin/sh", append(argv, p.spec.args(p.dir)...)...)
	cmd.Dir = p.dir
	cmd.Stdout, cmd.Stderr = log, log
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		_ = os.Remove(filepath.Join(p.pids, strconv.Itoa(cmd.Process.Pid)))
		close(done)
	}()
	return nil
}

func (p *process) exited(context.Context) bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) pause(context.Context) error  { return pauseProcess(p.cmd.Process) }
func (p *process) resume(context.Context) error { return resumeProcess(p.cmd.Process) }

func (p *process) kill(context.Context) error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

func (p *process) wipe(context.Context) error {
	if err := os.RemoveAll(filepath.Join(p.dir, "data")); err != nil {
		return err
	}
	return p.writeFiles()
}

func (p *process) remove(ctx context.Context) error {
	err := p.kill(ctx)
	return errors.Join(err, os.RemoveAll(p.dir))
}

func (p *process) logs(context.Context) string {
	text, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return tail(string(text))
}

// tail returns the last lines of a server's output.
func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
