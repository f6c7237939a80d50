package redisbackend

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fake is a server that answers what its test says. It stands in for what a real
// one cannot be made to do on demand: being old, or redirecting n times in a row.
type fake struct {
	ln     net.Listener
	answer func(args []string) string // a RESP reply
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newFake(t testing.TB, answer func(args []string) string) *fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{ln: ln, answer: answer}
	f.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
			f.wg.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		f.mu.Lock()
		for _, c := range f.conns {
			c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

func (f *fake) addr() string { return f.ln.Addr().String() }

func (f *fake) serve(c net.Conn) {
	r := bufio.NewReader(c)
	number := func(kind byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil || line[0] != kind {
			return 0, fmt.Errorf("bad request %q (%v)", line, err)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	for {
		n, err := number('*')
		if err != nil {
			return
		}
		args := make([]string, n)
		for i := range args {
			size, err := number('$')
			if err != nil {
				return
			}
			buf := make([]byte, size+2)
			if _, err := io.ReadFull(r, buf); err != nil {
				return
			}
			args[i] = string(buf[:size])
		}
		args[0] = strings.ToUpper(args[0])
		reply := "-ERR unknown command 'HELLO'\r\n"
		if args[0] != "HELLO" {
			reply = f.answer(args)
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
