package testbed

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
)

// Ports of the servers lie below the range from which systems give ports to
// outgoing connections. Otherwise such a connection could take the port of a
// server that is down for a moment, and a client that dials it again and again
// could even be connected to itself.
const (
	firstPort    = 15000
	portsPerSlot = 128
	slots        = (32000 - firstPort) / portsPerSlot
)

// slot is a directory and a range of ports that belong to one bed alone. It is
// held by a file lock, which ends with the process however that ends, so that a
// later bed can take the slot and clear what was left in it.
type slot struct {
	dir  string // of this bed's servers; removed by close
	lock *os.File

	// janitor waits for this process to end, kills the servers it has left and
	// removes dir. It has a copy of lock's descriptor, so nobody takes the slot
	// while it works. Writing end of its standard input: janitorIn.
	janitor   *exec.Cmd
	janitorIn *os.File

	mu   sync.Mutex
	used map[int]bool
	next int
	base int
}

// janitorScript is run with the slot's directory and the label of its containers
// (empty if there are none). Servers write their process ids to pids before they
// become servers, and cannot start when that directory is gone.
const janitorScript = `
PATH=$PATH:/usr/local/bin:/usr/bin:/bin
while read -r line; do :; done
for f in "$1"/pids/*; do
	if [ -e "$f" ]; then kill -9 "${f##*/}"; fi
done
if [ -n "$2" ] && command -v docker >/dev/null; then
	ids=$(docker ps -aq --filter "label=$2")
	if [ -n "$ids" ]; then docker rm -f -v $ids; fi
fi
rm -rf -- "$1"
`

func takeSlot() (*slot, error) {
	parent := filepath.Join(os.TempDir(), "distlock-testbed-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, err
	}
	for i := range slots {
		dir := filepath.Join(parent, fmt.Sprintf("slot-%03d", i))
		f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if !tryLock(f) {
			_ = f.Close()
			continue
		}
		s := &slot{dir: dir, lock: f, used: make(map[int]bool), base: firstPort + i*portsPerSlot}
		if err := s.prepare(); err != nil {
			_ = f.Close()
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("testbed: all %d slots in %s are in use", slots, parent)
}

// label marks the slot's containers. It contains the directory, and with it the
// user: other users' containers on the same engine are left alone.
func (s *slot) label() string { return labelKey + "=" + s.dir }

const labelKey = "distlock.testbed"

func (s *slot) prepare() error {
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(s.dir, "pids"), 0o700)
}

// watch starts the janitor.
func (s *slot) watch(containers bool) error {
	label := ""
	if containers {
		label = s.label()
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "distlock-testbed-janitor", s.dir, label)
	cmd.Stdin = r
	cmd.ExtraFiles = []*os.File{s.lock}
	cmd.Dir = "/"
	detach(cmd)
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return err
	}
	s.janitor, s.janitorIn = cmd, w
	return nil
}

// close lets the janitor do its work and waits for it.
func (s *slot) close() error {
	var err error
	if s.janitor != nil {
		_ = s.janitorIn.Close()
		err = s.janitor.Wait()
	} else {
		err = os.RemoveAll(s.dir)
	}
	return errors.Join(err, s.lock.Close())
}

// port gives a port of the slot on which nobody listens.
func (s *slot) port() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range portsPerSlot {
		p := s.base + s.next
		s.next = (s.next + 1) % portsPerSlot
		if s.used[p] {
			continue
		}
		// On all addresses: a server that listens on 0.0.0.0 is in the way too.
		ln, err := net.Listen("tcp", ":"+strconv.Itoa(p))
		if err != nil {
			continue
		}
		_ = ln.Close()
		s.used[p] = true
		return p, nil
	}
	return 0, fmt.Errorf("testbed: no free port between %d and %d", s.base, s.base+portsPerSlot-1)
}

func (s *slot) ports(n int) ([]int, error) {
	out := make([]int, n)
	for i := range out {
		p, err := s.port()
		if err != nil {
			s.free(out[:i]...)
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}

func (s *slot) free(ports ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ports {
		delete(s.used, p)
	}
}
