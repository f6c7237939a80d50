package bench

import (
	"errors"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Code is the size of a backend: lines that carry code, without blank lines,
// comments and tests. Shared is in packages that it shares with another backend.
type Code struct {
	Own    int `json:"own"`
	Lua    int `json:"lua"`
	Shared int `json:"shared"`
}

var packages = map[string]string{
	"memory": "membackend", "redis": "redisbackend", "redlock": "redlockbackend",
	"zookeeper": "zkbackend", "etcd": "etcdbackend",
}

// countCode reads the source of the backend, which is there when the program
// was built on this machine; else ok is false.
func countCode(backend string) (c Code, ok bool) {
	root, ok := sourceRoot()
	if !ok {
		return Code{}, false
	}
	shared, err := c.add(filepath.Join(root, packages[backend]), &c.Own)
	for i := 0; err == nil && i < len(shared); i++ { // grows while it is walked
		var more []string
		more, err = c.add(filepath.Join(root, "internal", shared[i]), &c.Shared)
		for _, m := range more {
			if !slices.Contains(shared, m) {
				shared = append(shared, m)
			}
		}
	}
	return c, err == nil && c.Own > 0
}

// sourceRoot is the folder of the module that this program was built from; not ok
// if it is not on this machine, or unknown because of -trimpath.
func sourceRoot() (root string, ok bool) {
	_, here, _, found := runtime.Caller(0)
	root = filepath.Dir(filepath.Dir(here))
	if !found || !filepath.IsAbs(root) {
		return "", false
	}
	info, err := os.Stat(root)
	return root, err == nil && info.IsDir()
}

const internalPrefix = "example.com/distlock/internal/"

// add counts the package in dir and returns the internal packages it imports.
func (c *Code) add(dir string, goLines *int) (internals []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		src, err := os.ReadFile(filepath.Join(dir, f.Name()))
		switch {
		case f.IsDir() || strings.HasSuffix(f.Name(), "_test.go"):
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		switch filepath.Ext(f.Name()) {
		case ".lua":
			c.Lua += luaLines(string(src))
		case ".go":
			*goLines += goCodeLines(src)
			file, err := parser.ParseFile(token.NewFileSet(), f.Name(), src, parser.ImportsOnly)
			if err != nil {
				return nil, err
			}
			for _, imp := range file.Imports {
				path, _ := strconv.Unquote(imp.Path.Value)
				if name, ok := strings.CutPrefix(path, internalPrefix); ok && !slices.Contains(internals, name) {
					internals = append(internals, name)
				}
			}
		}
	}
	return internals, nil
}

// goCodeLines counts the lines on which a token begins or runs on.
func goCodeLines(src []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0) // 0: comments are skipped
	n, last := 0, 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return n
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue // added by the scanner
		}
		first := file.Line(pos)
		end := first + strings.Count(lit, "\n") // a raw string may be long
		n += end - max(first-1, last)
		if end > last {
			last = end
		}
	}
}

func luaLines(src string) (n int) {
	for line := range strings.Lines(src) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			n++
		}
	}
	return n
}
