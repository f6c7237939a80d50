// Command testsum reads the output of go test -json from standard input and
// shows what go test would without -v: a line for each package and all output of
// tests that fail. It also shows which tests were skipped and why, and ends with
// their numbers, so that a run in which nothing was tested cannot pass for a
// good one.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

type test struct{ pkg, name string }

func main() {
	start := time.Now()
	outputs := make(map[test][]string)
	counts := make(map[string]int)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			fmt.Println(in.Text()) // the go command's own messages
			continue
		}
		id := test{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Print(e.Output)
		case "output":
			if e.Test == "" {
				if e.Output != "PASS\n" {
					fmt.Print(e.Output)
				}
			} else {
				outputs[id] = append(outputs[id], e.Output)
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				continue // counted by its tests
			}
			counts[e.Action]++
			if e.Action != "pass" {
				for _, line := range outputs[id] {
					if !strings.HasPrefix(line, "=== ") {
						fmt.Print(line)
					}
				}
			}
			delete(outputs, id)
		}
	}
	if err := in.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
	// Tests that never ended: a panic or a timeout took their package with it.
	for id, lines := range outputs {
		fmt.Printf("--- unfinished: %s in %s\n%s", id.name, id.pkg, strings.Join(lines, ""))
	}
	fmt.Printf("%d passed, %d failed, %d skipped in %v\n",
		counts["pass"], counts["fail"], counts["skip"], time.Since(start).Round(time.Second))
	if counts["fail"] > 0 {
		os.Exit(1)
	}
}
