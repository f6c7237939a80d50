package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"example.com/distlock/internal/faultproxy"
)

// Etcd starts one etcd server (n = 1) or a cluster of n.
func (b *Bed) Etcd(ctx context.Context, n int, opts ...Option) (*Cluster, error) {
	g, err := b.etcd(ctx, n, b.options(opts))
	if err != nil {
		return nil, err
	}
	return g.cluster, nil
}

func (b *Bed) etcd(ctx context.Context, n int, o options) (*group, error) {
	if b.provider == nil {
		g, err := b.external(ctx, kindEtcd, "DISTLOCK_TESTBED_ETCD", 1, etcdReady)
		if err != nil {
			return nil, err
		}
		g.cluster = &Cluster{servers: g.servers, leads: etcdLeads}
		return g, nil
	}
	var e *etcdCluster
	g, err := b.start(ctx, 2*n, func(ports []int) (servers []*Server, links []io.Closer, err error) {
		e = &etcdCluster{o: o, client: ports[:n], peer: ports[n:]}
		if o.cut && n > 1 {
			links, err = e.connect()
		}
		for i := range n {
			servers = append(servers, b.etcdServer(e, i))
		}
		return servers, links, err
	})
	if err != nil {
		return nil, err
	}
	g.cluster = &Cluster{servers: g.servers, leads: etcdLeads}
	if e.links != nil {
		ids := make([]string, n)
		for i, s := range g.servers {
			st, err := etcdStatus(ctx, s.addr)
			if err != nil {
				return nil, errors.Join(err, g.close())
			}
			ids[i] = strconv.FormatUint(st.Header.MemberID, 16)
		}
		g.cluster.cut = func(s *Server) (func(), error) {
			for i, one := range g.servers {
				if one == s {
					return e.cut(i, ids), nil
				}
			}
			return nil, errNotMember
		}
	} else {
		g.cluster.cut = func(*Server) (func(), error) { return nil, errNotCuttable }
	}
	return g, nil
}

// etcdCluster is the layout of a cluster. All members know a member by the one
// address that it advertises, so each has one proxy, which tells the others'
// connections apart by a header that etcd sends with its messages.
type etcdCluster struct {
	o            options
	client, peer []int
	links        []*faultproxy.Proxy // nil if the members are connected directly

	mu   sync.Mutex
	cuts int
}

func (e *etcdCluster) connect() (links []io.Closer, err error) {
	for _, port := range e.peer {
		p, err := faultproxy.New(loopback(port), faultproxy.WithInspect(etcdSender))
		if err != nil {
			return links, err
		}
		e.links = append(e.links, p)
		links = append(links, p)
	}
	return links, nil
}

// etcdSender finds the member that sends a peer request.
func etcdSender(_ bool, data []byte) ([]byte, string) {
	const header = "\r\nX-Server-From: "
	_, rest, ok := bytes.Cut(data, []byte(header))
	if !ok {
		return data, ""
	}
	id, _, ok := bytes.Cut(rest, []byte("\r\n"))
	if !ok {
		return data, ""
	}
	return data, string(id)
}

// cut isolates a member: nothing reaches it, and nothing of it reaches the
// others. Connections whose sender is not known yet are held as well: they
// carry no more than liveness probes until their first message names it.
func (e *etcdCluster) cut(member int, ids []string) (heal func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cuts++
	for i, p := range e.links {
		if i == member {
			p.Cut()
			continue
		}
		p.CutTag(ids[member])
		p.CutTag("")
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cuts--
		for i, p := range e.links {
			if i == member {
				p.Uncut()
				continue
			}
			p.HealTag(ids[member])
			if e.cuts == 0 {
				p.HealTag("")
			}
		}
	}
}

func (b *Bed) etcdServer(e *etcdCluster, i int) *Server {
	name := func(i int) string { return fmt.Sprintf("m%d", i+1) }
	peerURL := func(i int) string {
		if e.links != nil {
			return "http://" + e.links[i].Addr()
		}
		return "http://" + loopback(e.peer[i])
	}
	members := make([]string, len(e.peer))
	for j := range members {
		members[j] = name(j) + "=" + peerURL(j)
	}
	client := "http://" + loopback(e.client[i])
	args := []string{
		"--name", name(i),
		"--listen-client-urls", client,
		"--advertise-client-urls", client,
		"--listen-peer-urls", "http://" + loopback(e.peer[i]),
		"--initial-advertise-peer-urls", peerURL(i),
		"--initial-cluster", strings.Join(members, ","),
		"--initial-cluster-token", fmt.Sprintf("distlock-%d", e.peer[0]),
		"--log-level", "warn",
	}
	if !e.o.durable {
		args = append(args, "--unsafe-no-fsync")
	}
	s := &spec{
		kind:         kindEtcd,
		name:         fmt.Sprintf("etcd-%d", b.serial()),
		port:         e.client[i],
		mustKeepData: len(e.peer) > 1,
		args: func(dir string) []string {
			return append([]string{"--data-dir", dir + "/data"}, args...)
		},
	}
	return &Server{kind: kindEtcd, addr: loopback(e.client[i]), spec: s, ready: etcdReady}
}

// etcdPost calls etcd's JSON gateway, so that waiting for a server needs no
// client with connections and goroutines of its own.
func etcdPost(ctx context.Context, addr, path, body string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := etcdHTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, bytes.TrimSpace(text))
	}
	return json.Unmarshal(text, answer)
}

var etcdHTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

type etcdStatusAnswer struct {
	Header struct {
		MemberID uint64 `json:"member_id,string"`
	} `json:"header"`
	Leader uint64 `json:"leader,string"`
}

func etcdStatus(ctx context.Context, addr string) (etcdStatusAnswer, error) {
	var st etcdStatusAnswer
	err := etcdPost(ctx, addr, "/v3/maintenance/status", "{}", &st)
	return st, err
}

// etcdReady makes a linearizable read, which needs a leader and a quorum. The
// key is "testbed" in base64.
func etcdReady(ctx context.Context, addr string) error {
	var answer struct{}
	return etcdPost(ctx, addr, "/v3/kv/range", `{"key":"dGVzdGJlZA=="}`, &answer)
}

func etcdLeads(ctx context.Context, addr string) (bool, error) {
	st, err := etcdStatus(ctx, addr)
	return err == nil && st.Leader != 0 && st.Leader == st.Header.MemberID, err
}
