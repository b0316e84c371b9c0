package luascripts

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

//go:embed *.lua
var files embed.FS

// script is one embedded file, ready to run.
type script struct {
	name string
	text string
	sha  string
}

// loaded has the texts of all scripts, by digest.
var loaded sync.Map

// load builds a script from <name>.lua and the files that it includes.
func load(name string) *script {
	s := newScript(name, assemble(name, map[string]bool{}))
	loaded.Store(s.sha, s.text)
	return s
}

func newScript(name, text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

// includes is the prefix of the header line that names the files whose functions the script uses.
// later is the prefix of the line that names the files whose functions it rarely uses.
const (
	includes = "-- include: "
	later    = "-- later: "
)

// assemble returns the text of <file>.lua, preceded by the text of its includes, directly and
// indirectly. "-- include: token, queue" names include_token.lua and include_queue.lua. Files in
// have are omitted.
//
// "-- later: acquire" puts the functions of include_acquire.lua, and those that they use, into a
// function called later, which returns those of include_acquire.lua by their names. A server defines
// the functions of a script at each call, which takes longer than the work of most calls.
func assemble(file string, have map[string]bool) string {
	if have[file] {
		return ""
	}
	have[file] = true
	text := read(file)
	var before string
	for _, other := range listed(text, includes) {
		before += assemble(other, have)
	}
	if others := listed(text, later); others != nil {
		var inside, names string
		for _, other := range others {
			inside += assemble(other, have)
			for _, m := range functions.FindAllStringSubmatch(read(other), -1) {
				names += m[1] + " = " + m[1] + ", "
			}
		}
		before += "local function later()\n" + inside + "return {" + names + "}\nend\n"
	}
	return before + text
}

var functions = regexp.MustCompile(`(?m)^local function ([a-z_]+)\(`)

func read(file string) string {
	text, err := files.ReadFile(file + ".lua")
	if err != nil {
		panic(err) // the file is missing: the package cannot work
	}
	return string(text)
}

// listed returns the files in the header line that starts with word.
func listed(text, word string) (files []string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			break // the header ends
		}
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), word); ok {
			for name := range strings.SplitSeq(list, ", ") {
				files = append(files, "include_"+name)
			}
		}
	}
	return files
}

// exec runs s by its digest, or by its text if the server has not loaded it. rdb can be a client or one connection.
func (s *script) exec(ctx context.Context, rdb rueidis.CoreClient, keys, args []string) rueidis.RedisResult {
	w := words{keys, args}
	reply := rdb.Do(ctx, s.command(rdb, &w, false))
	if isUnknown(reply) {
		reply = rdb.Do(ctx, s.command(rdb, &w, true))
	}
	return reply
}

// execAll runs n calls in one pipeline, as exec does. fill puts the words of the i-th call into w, and returns its script. A call
// whose script is not loaded requires one more round trip. rueidis' own ExecMulti would load the script on every node at every
// call.
func execAll(ctx context.Context, rdb rueidis.CoreClient, n int, fill func(i int, w *words) *script) []rueidis.RedisResult {
	if n == 1 {
		w := unusedWords.Get().(*words)
		defer w.done()
		return []rueidis.RedisResult{fill(0, w).exec(ctx, rdb, w.keys, w.args)}
	}
	commandOf := func(i int, text bool) rueidis.Completed {
		w := unusedWords.Get().(*words)
		defer w.done()
		return fill(i, w).command(rdb, w, text)
	}
	commands := make(rueidis.Commands, n)
	for i := range commands {
		commands[i] = commandOf(i, false)
	}
	replies := rdb.DoMulti(ctx, commands...)
	var unknown []int
	commands = nil
	for i, reply := range replies {
		if isUnknown(reply) {
			unknown = append(unknown, i)
			commands = append(commands, commandOf(i, true))
		}
	}
	if commands != nil {
		for j, reply := range rdb.DoMulti(ctx, commands...) {
			replies[unknown[j]] = reply
		}
	}
	return replies
}

// split appends to calls the script calls for batch. Each call has up to perCall neighbors of batch,
// which are in one slot.
func split[S ~[]E, E interface{ slot() uint16 }](calls []S, batch S, perCall int) []S {
	start := 0
	for i := range batch {
		if next := i + 1; next == len(batch) || next-start == perCall || batch[next].slot() != batch[i].slot() {
			calls = append(calls, batch[start:next])
			start = next
		}
	}
	return calls
}

// command returns the command of one call: the digest of s, or its text, with its words.
func (s *script) command(rdb rueidis.CoreClient, w *words, text bool) rueidis.Completed {
	n := int64(len(w.keys))
	if text {
		return rdb.B().Eval().Script(s.text).Numkeys(n).Key(w.keys...).Arg(w.args...).Build()
	}
	return rdb.B().Evalsha().Sha1(s.sha).Numkeys(n).Key(w.keys...).Arg(w.args...).Build()
}

// isUnknown reports whether the server has not loaded the script of a call.
func isUnknown(reply rueidis.RedisResult) bool {
	e, refused := rueidis.IsRedisErr(reply.Error())
	return refused && e.IsNoScript()
}

// words has the keys and the arguments of one call. It is reused.
type words struct{ keys, args []string }

var unusedWords = sync.Pool{New: func() any { return new(words) }}

// done makes w available for reuse. The command that was built has a copy of the words.
func (w *words) done() {
	clear(w.keys)
	clear(w.args)
	w.keys, w.args = w.keys[:0], w.args[:0]
	unusedWords.Put(w)
}

// add adds arguments.
func (w *words) add(args ...string) { w.args = append(w.args, args...) }

// bit returns b in the form that scripts take.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// ms returns d in the form that scripts take.
func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// texts caches the texts of the latest durations, because many commands use the same ones.
var texts [64]atomic.Pointer[durationText]

type durationText struct {
	d    time.Duration
	text string
}

// settingMs is ms for a duration that is a setting, and therefore the same in many commands.
func settingMs(d time.Duration) string {
	latest := &texts[uint64(d.Milliseconds())%uint64(len(texts))]
	if t := latest.Load(); t != nil && t.d == d {
		return t.text
	}
	t := &durationText{d, ms(d)}
	latest.Store(t)
	return t.text
}

// execReplicated runs s. If s grants a lock, it waits up to timeout until n replicas have confirmed its
// writes, and returns how many have. WAIT counts only the writes of its own connection, so both
// commands use a dedicated connection. The library does not follow redirections there.
//
// The library sets no limit for WAIT. Therefore ctx must be canceled at some time, which closes the
// connection.
func (s *script) execReplicated(ctx context.Context, rdb rueidis.Client, keys, args []string, n int, timeout time.Duration) (a Acquired, err error) {
	conn, release := rdb.Dedicate()
	defer func() { release() }()
	reply := s.exec(ctx, conn, keys, args)
	if node := redirection(rdb, reply.Error()); node != nil {
		release()
		conn, release = node.Dedicate()
		reply = conn.DoMulti(ctx, conn.B().Asking().Build(), s.command(conn, &words{keys, args}, true))[1] // after MOVED, ASKING has no effect
	}
	if a, err = acquired(s, reply); err != nil || a.Verdict != Done {
		return a, err
	}
	defer context.AfterFunc(ctx, conn.Close)() // while the library reads from the connection, only a deadline ends the read
	have, err := conn.Do(ctx, conn.B().Wait().Numreplicas(int64(n)).Timeout(timeout.Milliseconds()).Build()).ToInt64()
	if reply, refused := rueidis.IsRedisErr(err); refused {
		// The script ran. Only its caller can decide what to do now.
		return Acquired{}, &WaitError{reply.Error()}
	}
	a.Confirmed = int(have)
	return a, err
}

// redirection returns the node to which err redirects a command, or nil.
func redirection(rdb rueidis.Client, err error) rueidis.Client {
	reply, refused := rueidis.IsRedisErr(err)
	if !refused {
		return nil
	}
	addr, asks := reply.IsAsk()
	if !asks {
		addr, _ = reply.IsMoved()
	}
	return rdb.Nodes()[addr]
}

// UnknownError means that the server does not have a command that leasehold needs. The command was
// renamed or disabled, or a proxy does not forward it.
type UnknownError struct {
	Reply string
	Needs string // the command that a script calls; empty for EVALSHA and EVAL
}

// Error repeats the server's message, but not the arguments, and names the command.
func (e *UnknownError) Error() string {
	needs := e.Needs
	if needs == "" {
		needs = "EVALSHA and EVAL"
	}
	return e.Reply + " (leasehold needs " + needs + "; it may have been renamed)"
}

// Discreet returns err, the error of a script, without the arguments of the command. A server
// repeats them if it does not have the command, and an owner is among them. The returned error
// names a command that a script calls and the server does not have.
func Discreet(err error) error {
	var reply *rueidis.RedisError
	if errors.As(err, &reply) {
		if words, _, repeats := strings.Cut(reply.Error(), ", with args beginning with"); repeats {
			return &UnknownError{Reply: words}
		}
		if unknownInScript.MatchString(reply.Error()) {
			return &UnknownError{reply.Error(), missing(reply.Error())}
		}
	}
	return err
}

// Replies of servers if a script calls a command that they do not support. They name the script and the line, but not the
// command.
var (
	unknownInScript = regexp.MustCompile(`(?i)unknown (redis |valkey )?command called from`)
	digest          = regexp.MustCompile(`[0-9a-f]{40}`)
	lineOfScript    = regexp.MustCompile(`user_script: ?([0-9]+)`)
	called          = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)
)

// missing returns the command in the line of the script that a reply names.
func missing(reply string) string {
	const unknown = "a command of its scripts"
	at := lineOfScript.FindStringSubmatch(reply)
	text, ok := loaded.Load(digest.FindString(reply))
	if at == nil || !ok {
		return unknown
	}
	n, _ := strconv.Atoi(at[1])
	lines := strings.Split(text.(string), "\n")
	if n < 1 || n > len(lines) {
		return unknown
	}
	var names []string
	for _, m := range called.FindAllStringSubmatch(lines[n-1], -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	if names == nil {
		return unknown
	}
	return strings.Join(names, " and ")
}

// WaitError means that a server cannot, or is not allowed to, wait for its replicas. The script
// before it was executed.
type WaitError struct{ Reply string }

// Error repeats the server's message.
func (e *WaitError) Error() string {
	return "the server cannot wait for replicas (WAIT): " + e.Reply
}

// ReplyError is a reply that no script returns. It means that something between the client and the
// server replies instead of the server.
type ReplyError struct {
	Script string
	Reply  string
}

// Error names the script and the reply.
func (e *ReplyError) Error() string {
	return fmt.Sprintf("script %s: unexpected reply %s", e.Script, e.Reply)
}
