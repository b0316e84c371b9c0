package main

import (
	"fmt"
	"slices"
	"strings"
)

// parseLua returns the mutations of a Lua 5.1 script. It supports the part of the language that the scripts use, and
// returns an error for anything else.
func parseLua(file, text string) (sites []site, err error) {
	p := &luaParser{file: file, text: text}
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(luaFault)
			if !ok {
				panic(r)
			}
			err = fault
		}
	}()
	p.scan()
	p.block()
	if p.now().kind != luaEnd {
		p.fail("unexpected %q", p.now().text)
	}
	return p.sites, nil
}

type luaFault struct{ error }

type luaKind int

const (
	luaEnd luaKind = iota
	luaName
	luaWord // a reserved word
	luaNumber
	luaString
	luaSign
)

type luaToken struct {
	kind     luaKind
	text     string
	from, to int
}

type luaParser struct {
	file, text string
	tokens     []luaToken
	at         int
	last       int // the end of the latest token
	start      int // of the statement being parsed
	sites      []site
}

func (p *luaParser) fail(format string, args ...any) {
	line := 1 + strings.Count(p.text[:min(p.now().from, len(p.text))], "\n")
	panic(luaFault{fmt.Errorf("%s:%d: %s", p.file, line, fmt.Sprintf(format, args...))})
}

var luaWords = strings.Fields("and break do else elseif end false for function if in local nil not or repeat return then true until while")

// scan splits the text into tokens.
func (p *luaParser) scan() {
	s := p.text
	letter := func(c byte) bool { return c == '_' || c|32 >= 'a' && c|32 <= 'z' }
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	for i := 0; i < len(s); {
		from := i
		switch c := s[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
			continue
		case strings.HasPrefix(s[i:], "--"):
			if strings.HasPrefix(s[i:], "--[[") {
				p.tokens = append(p.tokens, luaToken{luaEnd, "", i, i})
				p.fail("long comments are not supported")
			}
			if n := strings.IndexByte(s[i:], '\n'); n >= 0 {
				i += n
			} else {
				i = len(s)
			}
			continue
		case letter(c):
			for i < len(s) && (letter(s[i]) || digit(s[i])) {
				i++
			}
			kind := luaName
			if slices.Contains(luaWords, s[from:i]) {
				kind = luaWord
			}
			p.tokens = append(p.tokens, luaToken{kind, s[from:i], from, i})
		case digit(c):
			for i < len(s) && (letter(s[i]) || digit(s[i]) || s[i] == '.' && !strings.HasPrefix(s[i:], "..")) {
				i++
			}
			p.tokens = append(p.tokens, luaToken{luaNumber, s[from:i], from, i})
		case c == '\'' || c == '"':
			for i++; i < len(s) && s[i] != c; i++ {
				if s[i] == '\\' {
					i++
				}
			}
			i++
			p.tokens = append(p.tokens, luaToken{luaString, s[from:min(i, len(s))], from, i})
		default:
			i++
			for _, sign := range []string{"...", "..", "==", "~=", "<=", ">="} {
				if strings.HasPrefix(s[from:], sign) {
					i = from + len(sign)
					break
				}
			}
			p.tokens = append(p.tokens, luaToken{luaSign, s[from:i], from, i})
		}
	}
	p.tokens = append(p.tokens, luaToken{luaEnd, "", len(s), len(s)})
}

func (p *luaParser) now() luaToken { return p.tokens[p.at] }

func (p *luaParser) next() luaToken {
	t := p.tokens[p.at]
	p.at++
	p.last = t.to
	return t
}

// is reports whether the next token is one of these symbols or reserved words.
func (p *luaParser) is(texts ...string) bool {
	t := p.now()
	return (t.kind == luaSign || t.kind == luaWord) && slices.Contains(texts, t.text)
}

func (p *luaParser) accept(text string) bool {
	if !p.is(text) {
		return false
	}
	p.next()
	return true
}

func (p *luaParser) expect(text string) {
	if !p.accept(text) {
		p.fail("want %q, got %q", text, p.now().text)
	}
}

func (p *luaParser) name() string {
	if p.now().kind != luaName {
		p.fail("want a name, got %q", p.now().text)
	}
	return p.next().text
}

// mutate adds a mutation that replaces the text between from and to with new.
func (p *luaParser) mutate(op string, from, to int, new string) {
	p.sites = append(p.sites, site{file: p.file, op: op, from: from, to: to, new: new, start: p.start})
}

// block parses statements up to the word that ends them.
func (p *luaParser) block() {
	for p.now().kind != luaEnd && !p.is("end", "else", "elseif", "until") {
		p.statement()
		p.accept(";")
	}
}

func (p *luaParser) statement() {
	from, outer := p.now().from, p.start
	p.start = from
	defer func() { p.start = outer }()
	switch {
	case p.accept("if"):
		p.condition(true, true)
		p.expect("then")
		p.block()
		for p.accept("elseif") {
			p.condition(true, true)
			p.expect("then")
			p.block()
		}
		if p.accept("else") {
			p.block()
		}
		p.expect("end")
	case p.accept("while"):
		p.condition(true, false) // an infinite loop needs no test
		p.expect("do")
		p.block()
		p.expect("end")
	case p.accept("do"):
		p.block()
		p.expect("end")
	case p.accept("repeat"):
		p.block()
		p.expect("until")
		p.condition(false, true)
	case p.accept("for"):
		p.name()
		for p.accept(",") {
			p.name()
		}
		if !p.accept("in") {
			p.expect("=")
		}
		p.values()
		p.expect("do")
		p.block()
		p.expect("end")
	case p.accept("function"):
		p.name()
		for p.accept(".") {
			p.name()
		}
		p.body()
	case p.accept("local"):
		if p.accept("function") {
			p.name()
			p.body()
			return
		}
		p.name()
		for p.accept(",") {
			p.name()
		}
		if p.accept("=") {
			p.values()
		}
	case p.accept("return"):
		if p.now().kind != luaEnd && !p.is("end", "else", "elseif", "until", ";") {
			p.values()
		}
	case p.accept("break"):
	default:
		call := p.suffixed()
		if p.is("=", ",") {
			for p.accept(",") {
				p.suffixed()
			}
			p.expect("=")
			p.values()
		} else if !call {
			p.fail("want a statement, got %q", p.now().text)
		} else {
			// Only the removal of the whole call is kept, not the mutation that it has as a value.
			p.sites = slices.DeleteFunc(p.sites, func(s site) bool {
				return s.op == removed && s.from == from && s.to == p.last
			})
		}
		p.mutate(removed, from, p.last, "")
	}
}

func (p *luaParser) body() {
	p.expect("(")
	for !p.accept(")") {
		p.next()
	}
	p.block()
	p.expect("end")
}

// condition parses a condition and adds its mutations.
func (p *luaParser) condition(never, always bool) {
	from := p.now().from
	p.expression(0, false)
	if never {
		p.mutate("never", from, p.last, "false")
	}
	if always {
		p.mutate("always", from, p.last, "true")
	}
}

// values parses a list of expressions. Comparisons among them are mutated like conditions.
func (p *luaParser) values() {
	for {
		p.expression(0, true)
		if !p.accept(",") {
			return
		}
	}
}

var luaLevels = []struct {
	level int
	signs []string
}{
	{1, []string{"or"}},
	{2, []string{"and"}},
	{3, []string{"<", ">", "<=", ">=", "~=", "=="}},
	{4, []string{".."}},
	{5, []string{"+", "-"}},
	{6, []string{"*", "/", "%"}},
	{8, []string{"^"}},
}

var borders = map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">"}

// expression parses an expression whose operators bind more tightly than the level. value is true outside of
// conditions.
func (p *luaParser) expression(level int, value bool) {
	from := p.now().from
	switch {
	case p.accept("not"):
		p.expression(7, false)
		if value {
			p.boolean(from)
		}
	case p.accept("-"), p.accept("#"):
		p.expression(7, true)
	default:
		p.simple(value)
	}
	for {
		op := p.now()
		mine := 0
		for _, l := range luaLevels {
			if p.is(l.signs...) {
				mine = l.level
			}
		}
		if mine <= level || mine == 0 {
			return
		}
		left := p.last
		p.next()
		right := p.now().from
		if mine == 4 || mine == 8 {
			p.expression(mine-1, value)
		} else {
			p.expression(mine, value && mine != 3)
		}
		switch {
		case mine <= 2:
			p.mutate("operand", from, right, "") // without the left operand
			p.mutate("operand", left, p.last, "")
		case mine == 3:
			if other := borders[op.text]; other != "" {
				p.mutate("border", op.from, op.to, other)
			}
			if value {
				p.boolean(from)
			}
		}
	}
}

// boolean adds the mutations of a boolean value that starts at from: false and true.
func (p *luaParser) boolean(from int) {
	p.mutate("never", from, p.last, "false")
	p.mutate("always", from, p.last, "true")
}

func (p *luaParser) simple(value bool) {
	switch t := p.now(); {
	case t.kind == luaNumber, t.kind == luaString, p.is("nil", "true", "false", "..."):
		p.next()
	case p.accept("function"):
		p.body()
	case p.accept("{"):
		for !p.accept("}") {
			if p.now().kind == luaName && p.tokens[p.at+1].text == "=" {
				p.next()
				p.next()
			} else if p.accept("[") {
				p.expression(0, true)
				p.expect("]")
				p.expect("=")
			}
			p.expression(0, true)
			if !p.accept(",") {
				p.accept(";")
			}
		}
	default:
		p.suffixedValue(value)
	}
}

func (p *luaParser) suffixed() (call bool) { return p.suffixedValue(true) }

// suffixedValue parses a name or a parenthesized expression and what follows it: fields, indexes and calls. It reports
// whether it ends with a call.
func (p *luaParser) suffixedValue(value bool) (call bool) {
	from := p.now().from
	if p.accept("(") {
		p.expression(0, value)
		p.expect(")")
	} else {
		p.name()
	}
	for {
		switch {
		case p.accept("."):
			p.name()
			call = false
		case p.accept("["):
			p.expression(0, true)
			p.expect("]")
			call = false
		case p.is("("):
			what := p.text[from:p.last]
			p.next()
			var args []string
			var first int
			for !p.accept(")") {
				first = p.now().from
				p.expression(0, true)
				args = append(args, p.text[first:p.last])
				p.accept(",")
			}
			call = true
			p.called(what, args, from)
		default:
			return call
		}
	}
}

// called adds the mutations of a call.
func (p *luaParser) called(what string, args []string, from int) {
	switch what {
	case "math.max", "math.min":
		if len(args) == 2 {
			p.mutate("operand", from, p.last, "("+args[1]+")") // without the first argument
			p.mutate("operand", from, p.last, "("+args[0]+")")
		}
	case "redis.call", "redis.pcall":
		if len(args) > 0 && slices.Contains(luaWrites, strings.Trim(args[0], "'")) {
			p.mutate(removed, from, p.last, "0") // a write whose reply is used
		}
	}
}

var luaWrites = strings.Fields("APPEND DEL DECRBY EXPIRE HDEL HINCRBY HMSET HSET HSETNX INCR INCRBY INCRBYFLOAT LPUSH LREM LSET LTRIM PERSIST PEXPIRE PEXPIREAT PSETEX PUBLISH RENAME RPUSH SADD SET SETBIT SPUBLISH SREM UNLINK ZADD ZINCRBY ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE BITFIELD SETRANGE LPOP RPOP SPOP ZPOPMIN")
