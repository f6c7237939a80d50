package redisnode

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// forbiddenTexts are in what a server says to a user who may not do something, or
// who asks for a command that was renamed or disabled.
var forbiddenTexts = []string{
	"NOPERM",
	// In a script: Redis 6.2 and 7.0, 7.2 and newer, Valkey.
	"The user executing the script",
	"ACL failure in script",
	// Not there, or not for scripts.
	"unknown command",
	"Unknown Redis command",
	"This Redis command is not allowed from",
}

func forbidden(text string) bool {
	return slices.ContainsFunc(forbiddenTexts, func(t string) bool { return strings.Contains(text, t) })
}

// A denial is a command that failed, and what the server said.
type denial struct{ command, text string }

// What a denial is about.
const (
	aboutCommand = iota
	aboutKeys
	aboutChannel
	aboutAbsence
)

func (d denial) about() int {
	switch {
	case strings.Contains(d.text, "nknown "), strings.Contains(d.text, "This Redis command is not allowed from"):
		return aboutAbsence
	case strings.Contains(d.text, "can't run"), strings.Contains(d.text, "permissions to run"):
		return aboutCommand
	case strings.HasSuffix(d.command, "PUBLISH"):
		return aboutChannel
	}
	return aboutKeys
}

// rules are the ACL rules of a user of the prefix, without what warnings are for.
func (l Layout) rules(cluster bool, extra []string) string {
	under := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(l.Prefix) + ":*"
	commands := slices.Concat([]string{"EVAL", "EVALSHA", "GET", "SET", "DEL", "PTTL", "PEXPIRE", "TIME"}, extra)
	if cluster {
		commands = append(commands, "SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE", "CLUSTER|SLOTS")
	} else {
		commands = append(commands, "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE")
	}
	return fmt.Sprintf("~%s &%s +%s", under, under, strings.ToLower(strings.Join(commands, " +")))
}

// refused is the error for a user, or a server, that lacks what ds, at least one,
// are about; err is what the server said first.
func refused(l Layout, cluster bool, extra []string, ds []denial, err error) error {
	var commands, absent, parts []string
	var keys, channels bool
	for _, d := range ds {
		switch d.about() {
		case aboutCommand:
			commands = append(commands, d.command)
		case aboutKeys:
			keys = true
		case aboutChannel:
			channels = true
		case aboutAbsence:
			absent = append(absent, d.command)
		}
	}
	if len(absent) > 0 {
		parts = append(parts, "the server does not have "+strings.Join(absent, ", ")+", renamed or disabled")
	}
	if len(commands) > 0 {
		parts = append(parts, "the user lacks the permission to run "+strings.Join(commands, ", "))
	}
	if keys {
		parts = append(parts, fmt.Sprintf("the user lacks the permission to read and write the keys that begin with %q", l.Prefix+":"))
	}
	if channels {
		parts = append(parts, fmt.Sprintf("the user lacks the permission to publish on the channels that begin with %q", l.Prefix+":"))
	}
	return permanent("%s: locks need a user with the ACL rules %s (%w)", strings.Join(parts, "; "), l.rules(cluster, extra), err)
}

var (
	scriptLine   = regexp.MustCompile(`@user_script: ?(\d+)`)
	namedCommand = regexp.MustCompile(`run the '([^']+)' command`)
	calledInLine = regexp.MustCompile(`redis\.call\('([A-Z]+)'`)
)

// explain adds to a refusal what it is about. A server that says only in which
// line of a script it refused something would leave the user to guess.
func (s *Script) explain(keys []string, err error) error {
	if err == nil || !forbidden(err.Error()) {
		return err
	}
	d := denial{s.commandOf(err.Error()), err.Error()}
	if d.command == "" {
		d.command = "a command of a script"
	}
	switch d.about() {
	case aboutCommand:
		return permanent("the user lacks the permission to run %s (%w)", d.command, err)
	case aboutAbsence:
		return permanent("the server does not have %s, renamed or disabled (%w)", d.command, err)
	}
	return permanent("the user lacks the permission to read and write one of the keys %q (%w)", keys, err)
}

// commandOf returns the command that an error is about, "" if that is not known.
func (s *Script) commandOf(text string) string {
	if m := namedCommand.FindStringSubmatch(text); m != nil {
		return strings.ToUpper(m[1])
	}
	m := scriptLine.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	n, err := strconv.Atoi(m[1])
	lines := strings.Split(s.src, "\n")
	if err != nil || n < 1 || n > len(lines) {
		return ""
	}
	if m = calledInLine.FindStringSubmatch(lines[n-1]); m == nil {
		return ""
	}
	return m[1]
}
