package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Proposals for a list: each operand of each condition, each whole condition, each call and assignment that stands alone, each max and
// min, and each order of two calls of Redis.

// proposal is one change of a line; swap says that the line changes places with the next.
type proposal struct {
	guard string
	line  int
	new   string
	gone  bool
	swap  bool
}

var (
	goFunc   = regexp.MustCompile(`^func (?:\([^)]*\) )?(\w+)`)
	goCond   = regexp.MustCompile(`^(\t+(?:\} else )?if |\t+case |\t+return )(.*?)( \{|:|)$`)
	goCall   = regexp.MustCompile(`^\t+[a-z]\w*(\.\w+)+\([^{]*\)$`)
	goLocks  = regexp.MustCompile(`\.(R?[lL]ock|R?[uU]nlock)\(\)$`)
	goAssign = regexp.MustCompile(`^\t+[a-z]\w*(\.\w+)+(, [\w.]+)* = .*[^{(]$`)
	luaFunc  = regexp.MustCompile(`^local function (\w+)`)
	luaCond  = regexp.MustCompile(`^(\s*(?:else)?if )(.*?)( then\b.*)$`)
	luaCall  = regexp.MustCompile(`^\s*(redis\.p?call|[a-z]+)\(.*\)$`)
	luaOpens = regexp.MustCompile(`\bfunction\([^()]*\)$`) // the call goes on in the next lines
	goNote   = regexp.MustCompile(`\s+// .*$`)
	luaNote  = regexp.MustCompile(`\s+-- .*$`)
)

// propose prints a list for a file, without the tests that are near.
func propose(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	fmt.Printf("file %s\nnear ./PACKAGE .\npromise WHAT IS AT STAKE\n", name)
	seen := make(map[string]bool)
	for _, p := range proposals(lines, strings.HasSuffix(name, ".lua")) {
		old, fresh, ok := p.texts(lines, string(text))
		if !ok || old == fresh || seen[old+"\x00"+fresh] {
			continue
		}
		seen[old+"\x00"+fresh] = true
		fmt.Printf("\nguard %s\n", p.guard)
		for _, l := range strings.Split(old, "\n") {
			fmt.Println("-" + l)
		}
		if fresh != "" {
			for _, l := range strings.Split(fresh, "\n") {
				fmt.Println("+" + l)
			}
		}
	}
	return nil
}

// proposals returns what can be changed in these lines.
func proposals(lines []string, lua bool) (all []proposal) {
	function, note, cond := goFunc, goNote, goCond
	and, or, off := " && ", " || ", "false && (%s)"
	if lua {
		function, note, cond = luaFunc, luaNote, luaCond
		// Not "false and (%s)": the server in memory runs gopher-lua, and that jumps to a wrong place where a loop begins with a
		// constant that is false (github.com/yuin/gopher-lua/issues/540). A test would catch that, and not what is missing.
		and, or, off = " and ", " or ", "(%s) and false"
	}
	in := ""
	for i, line := range lines {
		if f := function.FindStringSubmatch(line); f != nil {
			in = f[1] + ": "
		} else if line == "end" || line == "}" {
			in = ""
		}
		code := note.ReplaceAllString(line, "")
		rest, bare := line[len(code):], strings.TrimSpace(code)
		add := func(what, fresh string) {
			all = append(all, proposal{guard: in + what, line: i, new: fresh + rest})
		}
		switch {
		case bare == "" || strings.HasPrefix(bare, "//") || strings.HasPrefix(bare, "--"):
		case cond.MatchString(code):
			c := cond.FindStringSubmatch(code)
			before, what, after := c[1], c[2], c[3]
			if first, second, ok := strings.Cut(what, "; "); ok && !lua {
				before, what = before+first+"; ", second
			}
			alternatives := operands(what, or)
			for k, a := range alternatives {
				join := func(fresh ...string) string {
					return before + strings.Join(append(append(append([]string{}, alternatives[:k]...), fresh...), alternatives[k+1:]...), or) + after
				}
				if len(alternatives) > 1 {
					add(fmt.Sprintf("`%s` of `%s`", a, what), join())
				}
				parts := operands(a, and)
				for n := range parts {
					if len(parts) > 1 {
						without := append(append([]string{}, parts[:n]...), parts[n+1:]...)
						add(fmt.Sprintf("`%s` of `%s`", parts[n], what), join(strings.Join(without, and)))
					}
				}
			}
			word := strings.TrimSpace(c[1])
			plain := !strings.Contains(what, ":=") && !strings.Contains(what, ", ") && (word != "case" || strings.ContainsAny(what, "=<>!.&|"))
			if len(alternatives) == 1 && len(operands(what, and)) == 1 && word != "return" && (lua || plain) {
				add(fmt.Sprintf("`%s %s`", word, what), before+fmt.Sprintf(off, what)+after)
			}
		case lua && luaCall.MatchString(code) && !luaOpens.MatchString(code), !lua && goCall.MatchString(code) && !goLocks.MatchString(code), !lua && goAssign.MatchString(code):
			all = append(all, proposal{guard: in + "`" + bare + "`", line: i, gone: true})
			if lua && i+1 < len(lines) && strings.HasPrefix(bare, "redis.") && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "redis.") {
				next := strings.TrimSpace(note.ReplaceAllString(lines[i+1], ""))
				all = append(all, proposal{guard: in + "order: `" + bare + "` before `" + next + "`", line: i, swap: true})
			}
		}
		for _, pair := range [][2]string{{"max(", "min("}, {"min(", "max("}} {
			if strings.Count(code, pair[0]) == 1 && !strings.HasPrefix(bare, "//") && !strings.HasPrefix(bare, "--") {
				all = append(all, proposal{guard: fmt.Sprintf("%s`%s` in `%s`", in, strings.TrimSuffix(pair[0], "("), bare), line: i, new: strings.Replace(line, pair[0], pair[1], 1)})
			}
		}
	}
	return all
}

// operands splits a condition at an operator that stands in no brackets.
func operands(text, operator string) (all []string) {
	depth, from := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		if depth == 0 && strings.HasPrefix(text[i:], operator) {
			all = append(all, text[from:i])
			i += len(operator) - 1
			from = i + 1
		}
	}
	return append(all, text[from:])
}

// texts returns the old and the new text, with as many lines around as it takes to stand there once.
func (p proposal) texts(lines []string, source string) (old, fresh string, ok bool) {
	size, changed := 1, []string{p.new}
	switch {
	case p.gone:
		changed = nil
	case p.swap:
		size, changed = 2, []string{lines[p.line+1], lines[p.line]}
	}
	for more := range 6 {
		for _, around := range [][2]int{{more, 0}, {0, more}} {
			first, last := p.line-around[0], p.line+size+around[1]
			if first < 0 || last > len(lines) {
				continue
			}
			old = strings.Join(lines[first:last], "\n")
			if strings.Count(source, old) == 1 {
				with := append(append(append([]string{}, lines[first:p.line]...), changed...), lines[p.line+size:last]...)
				return old, strings.Join(with, "\n"), true
			}
		}
	}
	return "", "", false
}
