package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"example.com/distlock/internal/faultproxy"
)

// ZooKeeper starts one ZooKeeper server (n = 1) or an ensemble of n.
func (b *Bed) ZooKeeper(ctx context.Context, n int, opts ...Option) (*Cluster, error) {
	g, err := b.zooKeeper(ctx, n, b.options(opts))
	if err != nil {
		return nil, err
	}
	return g.cluster, nil
}

func (b *Bed) zooKeeper(ctx context.Context, n int, o options) (*group, error) {
	if b.provider == nil {
		g, err := b.external(ctx, kindZooKeeper, "DISTLOCK_TESTBED_ZOOKEEPER", 1, zooKeeperReady)
		if err != nil {
			return nil, err
		}
		g.cluster = &Cluster{servers: g.servers, leads: zooKeeperLeads}
		return g, nil
	}
	var cuts func(*Server) (func(), error)
	g, err := b.start(ctx, 3*n, func(ports []int) (servers []*Server, links []io.Closer, err error) {
		ens := zkEnsemble{n: n, o: o, client: ports[:n], quorum: ports[n : 2*n], election: ports[2*n:]}
		if o.cut && n > 1 {
			links, err = ens.connect()
		}
		for i := range n {
			servers = append(servers, b.zooKeeperServer(&ens, i))
		}
		cuts = func(s *Server) (func(), error) {
			if ens.pairs == nil {
				return nil, errNotCuttable
			}
			for i, one := range servers {
				if one == s {
					return ens.cut(i), nil
				}
			}
			return nil, errNotMember
		}
		return servers, links, err
	})
	if err != nil {
		return nil, err
	}
	g.cluster = &Cluster{servers: g.servers, leads: zooKeeperLeads, cut: cuts}
	return g, nil
}

// zkEnsemble is the layout of an ensemble. Members may find each other at
// different addresses in different members' configurations: that is how every
// ordered pair gets a proxy of its own.
type zkEnsemble struct {
	n                        int
	o                        options
	client, quorum, election []int

	pairs map[[2]int]zkPair // from, to; nil if the members are connected directly
}

type zkPair struct{ quorum, election *faultproxy.Proxy }

func (e *zkEnsemble) connect() (links []io.Closer, err error) {
	e.pairs = make(map[[2]int]zkPair)
	for to := range e.n {
		for from := range e.n {
			if from == to {
				continue
			}
			q, err := faultproxy.New(loopback(e.quorum[to]))
			if err != nil {
				return links, err
			}
			links = append(links, q)
			// A member that dials another for the election says where it can be
			// dialled in turn. Its true address would be a way round the proxies.
			el, err := faultproxy.New(loopback(e.election[to]), faultproxy.WithInspect(
				func(first bool, data []byte) ([]byte, string) {
					if first {
						data = zkReplaceElectionAddr(data, e.pairs[[2]int{to, from}].election.Addr())
					}
					return data, ""
				}))
			if err != nil {
				return links, err
			}
			links = append(links, el)
			e.pairs[[2]int{from, to}] = zkPair{q, el}
		}
	}
	return links, nil
}

// zkReplaceElectionAddr rewrites the first message of an election connection:
// protocol version and server id (8 bytes each), length (4), address.
func zkReplaceElectionAddr(data []byte, addr string) []byte {
	const head = 8 + 8 + 4
	if len(data) < head {
		return data
	}
	end := head + int(binary.BigEndian.Uint32(data[16:head]))
	if len(data) < end {
		return data
	}
	out := append([]byte(nil), data[:16]...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(addr)))
	out = append(out, addr...)
	return append(out, data[end:]...)
}

func (e *zkEnsemble) each(member int, f func(*faultproxy.Proxy)) {
	for pair, p := range e.pairs {
		if pair[0] == member || pair[1] == member {
			f(p.quorum)
			f(p.election)
		}
	}
}

func (e *zkEnsemble) cut(member int) (heal func()) {
	e.each(member, (*faultproxy.Proxy).Cut)
	return func() { e.each(member, (*faultproxy.Proxy).Heal) }
}

// conf is the configuration of one member.
func (e *zkEnsemble) conf(i int, dir string) string {
	var c strings.Builder
	fmt.Fprintf(&c, "dataDir=%s/data\n", dir)
	fmt.Fprintf(&c, "clientPort=%d\nclientPortAddress=127.0.0.1\n", e.client[i])
	fmt.Fprintf(&c, "tickTime=%d\ninitLimit=8\nsyncLimit=4\n", e.o.tick/time.Millisecond)
	c.WriteString("maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n")
	c.WriteString("preAllocSize=1024\n")
	if !e.o.durable {
		c.WriteString("forceSync=no\n")
	}
	if e.n == 1 {
		return c.String()
	}
	// Without these, a member that was cut off asks for a new election only once
	// a minute and waits 5 s for each connection.
	c.WriteString("fastleader.maxNotificationInterval=1000\ncnxTimeout=1000\n")
	for j := range e.n {
		quorum, election := loopback(e.quorum[j]), fmt.Sprint(e.election[j])
		if p, ok := e.pairs[[2]int{i, j}]; ok {
			quorum = p.quorum.Addr()
			_, election, _ = net.SplitHostPort(p.election.Addr()) // an address that a listener gave
		}
		fmt.Fprintf(&c, "server.%d=%s:%s\n", j+1, quorum, election)
	}
	return c.String()
}

func (b *Bed) zooKeeperServer(e *zkEnsemble, i int) *Server {
	jvm := "-Xmx192m -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"
	if !e.o.durable {
		jvm += " -XX:TieredStopAtLevel=1" // starts faster, peaks lower
	}
	s := &spec{
		kind: kindZooKeeper,
		name: fmt.Sprintf("zookeeper-%d", b.serial()),
		port: e.client[i],
		jvm:  jvm,
		args: func(dir string) []string { return []string{dir + "/conf/zoo.cfg"} },
		files: func(dir string) map[string]string {
			return map[string]string{
				"conf/zoo.cfg": e.conf(i, dir),
				"data/myid":    fmt.Sprintln(i + 1),
			}
		},
	}
	return &Server{kind: kindZooKeeper, addr: loopback(e.client[i]), spec: s, ready: zooKeeperReady}
}

// zooKeeperMode is standalone, leader or follower.
func zooKeeperMode(ctx context.Context, addr string) (string, error) {
	reply, err := askAll(ctx, addr, "srvr", func(string) bool { return false })
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(reply) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", errors.New(strings.TrimSpace(reply))
}

func zooKeeperReady(ctx context.Context, addr string) error {
	_, err := zooKeeperMode(ctx, addr)
	return err
}

func zooKeeperLeads(ctx context.Context, addr string) (bool, error) {
	mode, err := zooKeeperMode(ctx, addr)
	return mode == "leader" || mode == "standalone", err
}
