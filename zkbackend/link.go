package zkbackend

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// A link is one connection to one server. It makes the session's handshake
// itself and then lets a zk.Conn of its own speak over it, for this connection
// only. Left to itself a zk.Conn reconnects, sends then what was asked of it
// before, replaces an expired session without a word, and does not tell the
// negotiated timeout; here each of these is a decision of the session.
type link struct {
	conn *zk.Conn
	wire *wire
	addr string
	sent time.Time     // when the connect request was sent
	down chan struct{} // closed when the connection has ended
	gone chan struct{} // closed when conn has ended too, soon after Close

	made   chan struct{}  // closed when conn is set
	calls  sync.WaitGroup // requests under way
	closed sync.Once
}

// hello is the outcome of a handshake.
type hello struct {
	id      int64 // 0: the server says that the session has expired
	timeout time.Duration
	passwd  []byte
}

const passwdLen = 16

// dialLink connects to addr and opens a session, or takes up the one in resume.
func dialLink(ctx context.Context, dial dialFunc, addr string, resume hello, zxid int64, contenders string, onEvent zk.EventCallback) (*link, hello, error) {
	fail := func(err error) (*link, hello, error) {
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return nil, hello{}, fmt.Errorf("zookeeper: %s: %w", addr, err)
	}
	tcp, err := dial(ctx, "tcp", addr)
	if err != nil {
		return fail(err)
	}
	// An end of ctx ends whatever is being read or written.
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	r := bufio.NewReaderSize(tcp, 16<<10)
	sent := time.Now()
	raw, h, err := handshake(tcp, r, resume, zxid)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil || h.id == 0 {
		tcp.Close()
		if err != nil {
			return fail(err)
		}
		return nil, h, nil
	}

	l := &link{addr: addr, sent: sent, down: make(chan struct{}), gone: make(chan struct{}), made: make(chan struct{})}
	l.wire = &wire{Conn: tcp, r: io.MultiReader(bytes.NewReader(raw), r), contenders: []byte(contenders)}
	hosts := &oneHost{addr: addr, wire: l.wire}
	conn, events, err := zk.Connect([]string{addr}, h.timeout,
		zk.WithHostProvider(hosts), zk.WithDialer(hosts.dial), zk.WithMaxConnBufferSize(sendBuffer),
		zk.WithLogger(noLog{}), zk.WithLogInfo(false),
		zk.WithEventCallback(func(ev zk.Event) {
			if ev.Type == zk.EventSession {
				if ev.State == zk.StateDisconnected {
					l.ended()
				}
				return
			}
			onEvent(ev)
		}))
	if err != nil {
		tcp.Close()
		return fail(err)
	}
	l.conn = conn
	close(l.made)
	go func() {
		for range events { // the callback has had them; the channel's end is the end of conn
		}
		close(l.gone)
	}()
	return l, h, nil
}

// sendBuffer bounds a request: a path, its data and its ACL. A server accepts
// 1 MiB unless told otherwise.
const sendBuffer = 1 << 20

// ended is called by conn's own goroutine when the connection is over, and once
// more when conn gives up for good.
func (l *link) ended() {
	select {
	case <-l.down:
		// Close has told conn to end and is about to queue its own request, which
		// conn then answers. Had conn gone on before that, Close would wait out a
		// second for the answer.
		time.Sleep(time.Millisecond)
	default:
		close(l.down)
		go func() {
			<-l.made
			l.conn.Close()
		}()
	}
}

// kill breaks the connection at once.
func (l *link) kill() { l.wire.Close() }

// close closes the session at the server if that answers before ctx ends, and
// breaks the connection. Pings stop at once.
func (l *link) close(ctx context.Context) {
	l.closed.Do(func() {
		l.wire.noPings.Store(true)
		// zk.Conn must not be closed while replies are being decoded for callers.
		if wait(ctx, &l.calls) {
			closed := make(chan struct{})
			go func() { l.conn.Close(); close(closed) }()
			select {
			case <-closed:
			case <-l.down:
			case <-ctx.Done():
			}
		}
		l.kill()
	})
	<-l.gone
}

// wait waits for wg, and reports whether that came before the end of ctx.
func wait(ctx context.Context, wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// handshake sends the connect request on w and reads the answer from r, which it
// returns also as it came.
func handshake(w io.Writer, r io.Reader, resume hello, zxid int64) ([]byte, hello, error) {
	passwd := make([]byte, passwdLen)
	copy(passwd, resume.passwd)
	req := make([]byte, 4, 64)
	req = binary.BigEndian.AppendUint32(req, 0) // protocol version
	req = binary.BigEndian.AppendUint64(req, uint64(zxid))
	req = binary.BigEndian.AppendUint32(req, uint32(resume.timeout.Milliseconds()))
	req = binary.BigEndian.AppendUint64(req, uint64(resume.id))
	req = binary.BigEndian.AppendUint32(req, passwdLen)
	req = append(req, passwd...)
	req = append(req, 0) // a server cut off from the others is of no use
	binary.BigEndian.PutUint32(req, uint32(len(req)-4))
	if _, err := w.Write(req); err != nil {
		return nil, hello{}, err
	}

	raw := make([]byte, 4, 64)
	if _, err := io.ReadFull(r, raw); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("server closed the connection (it is not serving, or has seen less than this client)")
		}
		return nil, hello{}, err
	}
	n := int(binary.BigEndian.Uint32(raw))
	if n < 36 || n > 256 {
		return nil, hello{}, fmt.Errorf("no ZooKeeper server: connect response of %d bytes", n)
	}
	raw = append(raw, make([]byte, n)...)
	if _, err := io.ReadFull(r, raw[4:]); err != nil {
		return nil, hello{}, err
	}
	if k := binary.BigEndian.Uint32(raw[20:]); k != passwdLen {
		return nil, hello{}, fmt.Errorf("no ZooKeeper server: session password of %d bytes", k)
	}
	return raw, hello{
		timeout: time.Duration(binary.BigEndian.Uint32(raw[8:])) * time.Millisecond,
		id:      int64(binary.BigEndian.Uint64(raw[12:])),
		passwd:  raw[24 : 24+passwdLen],
	}, nil
}

// wire is the connection as conn sees it: its connect request goes nowhere, since
// the handshake is over, and the answer to it is the one that the handshake had.
//
// A Get of a contender's node becomes one that sets a watch. The event reaches the session by the
// event callback all the same; only conn knows of no watch. It would remember
// one more for every read of a path, and would, when it has just started, look
// at those it has to set again without a lock.
//
// conn writes a whole packet at a time, one after the other.
type wire struct {
	net.Conn
	r          io.Reader
	greeted    bool        // conn has sent its connect request
	packet     []byte      // a request that is changed on its way
	contenders []byte      // how the paths of contenders' nodes begin
	noPings    atomic.Bool // the session is to end: do not prolong it
}

func (w *wire) Read(p []byte) (int, error) { return w.r.Read(p) }

func (w *wire) Write(p []byte) (int, error) {
	if !w.greeted {
		w.greeted = true
		return len(p), nil
	}
	const opGetData, opPing = 4, 11
	switch op := binary.BigEndian.Uint32(p[8:]); {
	case op == opGetData && bytes.HasPrefix(p[16:], w.contenders):
		w.packet = append(w.packet[:0], p...)
		w.packet[len(p)-1] = 1 // its last field: watch
		return w.Conn.Write(w.packet)
	case op == opPing && w.noPings.Load():
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// oneHost gives conn its connection once, and nothing after that.
type oneHost struct {
	addr string
	wire *wire
	used bool
}

func (h *oneHost) Init([]string) error { return nil }
func (h *oneHost) Len() int            { return 1 }
func (h *oneHost) Connected()          {}
func (h *oneHost) Next() (string, bool) {
	again := h.used
	h.used = true
	return h.addr, again
}

func (h *oneHost) dial(string, string, time.Duration) (net.Conn, error) {
	if h.wire == nil {
		return nil, errLinkLost
	}
	w := h.wire
	h.wire = nil
	return w, nil
}

type noLog struct{}

func (noLog) Printf(string, ...any) {}
