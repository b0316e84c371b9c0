package luascripts_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// play runs a transcript on an in-memory server whose clock moves only where the transcript waits, so every time in it
// is exact. It fails the test where a reply differs, and logs the transcript with the actual replies.
//
//	# what follows            the name of what is checked
//	ZADD c @1000 a            a command; @1000 is the ms of the server's clock 1000 ms after the start, @1000us its µs
//	PTTL c = 500              the reply it must get; '' is an empty text, ~ a space, & a tilde
//	waitgroup_status [c] 1 2 = [1 0] a script, its keys and its arguments
//	wait 10                   the clock moves by 10 ms; 10us are µs
//	published = [ch~1]        channels and messages since the last such line
//	sent ZREM = 1             how many of these commands the last script has sent
//	listeners ch 2 other 1    how many clients listen at these channels
//	SET s ab^10               a word padded with x to ten bytes
//	SET s <3xab>              ababab
//	ZADD z 1 entry(a^16,3)    an entry of a window
//	info maxmemory:9 a:b      what INFO says
//	without PEXPIRE HSET      these commands are denied, until the next such line
//	RPUSH q $a:01 %b:{1..9}   $a is a client of ours, %b one of Redisson, and {1..9} stands for nine words
func play(t *testing.T, transcript string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &playing{mini: redistest.NewMini(t), start: time.Now()}
		p.rdb = p.mini.Client(t)
		p.mini.Server().SetPreHook(p.seen)
		what := ""
		var replies strings.Builder
		for line := range strings.Lines(transcript) {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				what = line
				fmt.Fprintln(&replies, line)
				continue
			}
			line, want, checked := strings.Cut(line, " = ")
			got := p.line(t, strings.Fields(line))
			fmt.Fprintf(&replies, "%s = %s\n", line, got)
			if checked && got != want {
				t.Errorf("%s\n%s = %s, want %s", what, line, got, want)
			} else if !checked && strings.HasPrefix(got, "!") {
				t.Errorf("%s\n%s: %s", what, line, got)
			}
		}
		t.Logf("the transcript:\n%s", replies.String())
	})
}

type playing struct {
	mini  *redistest.Mini
	rdb   rueidis.Client
	start time.Time

	// mu guards the fields below. Each connection of the client has its goroutine in the server,
	// and one of them sends PING while the transcript waits.
	mu        sync.Mutex
	published []string
	sent      []string
	denied    []string
	listeners map[string]int
	info      string
}

// seen is called for each command, including those of scripts.
func (p *playing) seen(c *server.Peer, command string, args ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, command)
	if slices.Contains(p.denied, command) {
		c.WriteError("NOPERM User default has no permissions to run the '" + strings.ToLower(command) + "' command")
		return true
	}
	if command == "INFO" {
		c.WriteBulk(p.info)
		return true
	}
	if command == "PUBSUB" {
		c.WriteLen(2 * len(args[1:]))
		for _, channel := range args[1:] {
			c.WriteBulk(channel)
			c.WriteInt(p.listeners[channel])
		}
		return true
	}
	if command == "PUBLISH" {
		p.published = append(p.published, args[0]+"~"+args[1])
	}
	return false
}

// clients maps aliases to client UUIDs, and aliases maps them back.
var clients, aliases = func() (*strings.Replacer, *strings.Replacer) {
	var there, back []string
	for _, c := range "abcdef" {
		for sign, version := range map[string]string{"$": "7", "%": "4"} {
			uuid := fmt.Sprintf("0000000%c-0000-%s000-8000-000000000000", c, version)
			there = append(there, sign+string(c), uuid)
			back = append(back, uuid, sign+string(c))
		}
	}
	return strings.NewReplacer(there...), strings.NewReplacer(back...)
}()

// line runs one line, and returns the reply.
func (p *playing) line(t *testing.T, words []string) string {
	t.Helper()
	words = expanded(words)
	for i, word := range words {
		if word = spaces.Replace(p.times(word)); word == "''" {
			word = ""
		}
		word = repeated.ReplaceAllStringFunc(clients.Replace(word), func(all string) string {
			m := repeated.FindStringSubmatch(all)
			n, _ := strconv.Atoi(m[1])
			return strings.Repeat(m[2], n)
		})
		if m := padded.FindStringSubmatch(word); m != nil {
			n, _ := strconv.Atoi(m[3])
			word = m[1] + m[2] + strings.Repeat("x", n-len(m[2])) + m[4]
		}
		if m := entryOf.FindStringSubmatch(word); m != nil {
			n, _ := strconv.Atoi(m[2])
			word = string(rune(len(m[1]))) + m[1] + string([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
		}
		words[i] = word
	}
	if words[0] == "wait" {
		digits, us := strings.CutSuffix(words[1], "us")
		n, err := strconv.Atoi(digits)
		if err != nil {
			t.Fatal(err)
		}
		unit := time.Millisecond
		if us {
			unit = time.Microsecond
		}
		time.Sleep(time.Duration(n) * unit)
		return "OK"
	}
	if got, notified := p.tell(words); notified {
		return got
	}
	if _, err := os.Stat(words[0] + ".lua"); err != nil {
		m, _ := p.rdb.Do(t.Context(), p.rdb.B().Arbitrary(words...).Build()).ToMessage()
		return p.relative(shown(m))
	}
	var keys []string
	args := words[1:]
	for inside := true; inside && len(args) > 0; args = args[1:] {
		key := strings.TrimPrefix(args[0], "[")
		inside = !strings.HasSuffix(key, "]")
		keys = append(keys, strings.TrimSuffix(key, "]"))
	}
	p.mu.Lock()
	p.sent = nil
	p.mu.Unlock()
	m, _ := luascripts.Exec(t.Context(), p.rdb, words[0], keys, args).ToMessage()
	return p.relative(shown(m))
}

// tell runs a line that is not a command for the server, if it is one. Such a line changes the
// server's replies, or reports what was sent to it.
func (p *playing) tell(words []string) (got string, notified bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch words[0] {
	case "without":
		p.denied = words[1:]
		return "OK", true
	case "listeners":
		p.listeners = map[string]int{}
		for i := 1; i < len(words); i += 2 {
			n, _ := strconv.Atoi(words[i+1])
			p.listeners[words[i]] = n
		}
		return "OK", true
	case "info":
		p.info = "# Section\r\n" + strings.Join(words[1:], "\r\n") + "\r\n"
		return "OK", true
	case "published":
		all := p.published
		p.published = nil
		return p.relative("[" + strings.Join(all, " ") + "]"), true
	case "sent":
		n := 0
		for _, command := range p.sent {
			if command == words[1] {
				n++
			}
		}
		return strconv.Itoa(n), true
	}
	return "", false
}

var (
	errorCode = regexp.MustCompile(`[A-Z]{3,}`)
	padded    = regexp.MustCompile(`^(entry\(|)(.*)\^(\d+)(.*)$`)
	entryOf   = regexp.MustCompile(`^entry\((\w+),(\d+)\)$`)
	repeated  = regexp.MustCompile(`<(\d+)x([^>]*)>`)
	atTime    = regexp.MustCompile(`@(-?\d+)(us)?`)
	clockTime = regexp.MustCompile(`\b0?946[67]\d{8}(\d{3})?\b`)
)

var spaces = strings.NewReplacer("~", " ", "&", "~")

// expanded replaces each word that contains {1..9} with nine words.
func expanded(words []string) (all []string) {
	for _, word := range words {
		before, rest, is := strings.Cut(word, "{")
		numbers, after, _ := strings.Cut(rest, "}")
		low, high, ranges := strings.Cut(numbers, "..")
		if !is || !ranges {
			all = append(all, word)
			continue
		}
		from, _ := strconv.Atoi(low)
		to, _ := strconv.Atoi(high)
		for n := from; n <= to; n++ {
			all = append(all, before+strconv.Itoa(n)+after)
		}
	}
	return all
}

// times replaces @1000 with the server's time.
func (p *playing) times(text string) string {
	return atTime.ReplaceAllStringFunc(text, func(at string) string {
		us, is := strings.CutSuffix(at[1:], "us")
		n, _ := strconv.ParseInt(us, 10, 64)
		if is {
			return strconv.FormatInt(p.start.UnixMicro()+n, 10)
		}
		return strconv.FormatInt(p.start.UnixMilli()+n, 10)
	})
}

// relative replaces server times with @1000, and keeps a zero before them.
func (p *playing) relative(text string) string {
	return clockTime.ReplaceAllStringFunc(aliases.Replace(text), func(at string) string {
		digits := strings.TrimPrefix(at, "0")
		zero := at[:len(at)-len(digits)]
		n, _ := strconv.ParseInt(digits, 10, 64)
		if len(digits) > 13 {
			return fmt.Sprintf("%s@%dus", zero, n-p.start.UnixMicro())
		}
		return fmt.Sprintf("%s@%d", zero, n-p.start.UnixMilli())
	})
}

// shown returns a reply in the format of a transcript.
func shown(m rueidis.RedisMessage) string {
	if m.IsNil() {
		return "nil"
	}
	if all, err := m.ToArray(); err == nil {
		var texts []string
		for _, one := range all {
			texts = append(texts, shown(one))
		}
		return "[" + strings.Join(texts, " ") + "]"
	}
	if n, err := m.ToInt64(); err == nil {
		return strconv.FormatInt(n, 10)
	}
	if err := m.Error(); err != nil {
		return "!" + errorCode.FindString(err.Error())
	}
	text, _ := m.ToString()
	if text == "" {
		return "''"
	}
	return strings.NewReplacer(" ", "~", "~", "&").Replace(text)
}
