package luascripts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The models of the plain, the fair and the read/write lock (directory model) have their own server. TestSteps makes the
// scripts execute each step that this server takes in any state of a search. Redis gets the state of the model's server,
// and the script runs. Redis must then have the same state and reply as the model's server.
//
// The searches write the steps, each as a line of numbers, into files of the directory named by
// LEASEHOLD_STEPS (proof/model/check.sh, proof/model/steps.pml).
func TestSteps(t *testing.T) {
	dir := os.Getenv("LEASEHOLD_STEPS")
	if dir == "" {
		t.Skip("LEASEHOLD_STEPS is not set")
	}
	rdb := redistest.Start(t).Client(t)
	listenInLine(t, rdb)
	for _, m := range []struct {
		name    string
		scripts []string
		step    func(r *numbers) []step
	}{
		{"plain", []string{"reentrant_acquire", "reentrant_release", "reentrant_renew"}, plainSteps},
		{"fair", []string{"fair_acquire", "fair_keep", "fair_release"}, fairSteps},
		{"rw", []string{"rw_read_acquire", "rw_read_release", "rw_read_renew", "rw_write_acquire", "rw_write_release", "reentrant_renew"}, rwSteps},
	} {
		t.Run(m.name, func(t *testing.T) {
			var steps []step
			for _, line := range stepLines(t, filepath.Join(dir, m.name+"-*")) {
				r := numbers{t: t, line: line, rest: strings.Fields(line)}
				steps = append(steps, m.step(&r)...)
				if len(r.rest) != 0 {
					t.Fatalf("a line with too many numbers: %s", line)
				}
			}
			if len(steps) == 0 {
				t.Skip("no steps")
			}
			play := rueidis.NewLuaScript(player(m.scripts))
			wrong := 0
			for part := range slices.Chunk(steps, 100) {
				for i, fault := range stage(t, rdb, play, part) {
					if fault == "" {
						continue
					}
					if wrong++; wrong <= 10 {
						t.Errorf("%v\n%s", part[i].calls, fault)
					}
				}
			}
			t.Logf("%s: FOLLOWED %d of %d steps", m.name, len(steps)-wrong, len(steps))
		})
	}
}

// lineClient returns a process that waits in the queue of a plain lock. A dead one is not subscribed.
func lineClient(p int, dead bool) string {
	if dead {
		p += 5
	}
	return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-00000000000%d", p)
}

// listenInLine subscribes the living processes of plain.pml.
func listenInLine(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	for p := range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		ready, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			heard := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { close(ready) })
			rdb.Receive(heard, rdb.B().Subscribe().Channel("leasehold_channel:{lock}:"+lineClient(p, false)).Build(), func(rueidis.PubSubMessage) {})
		}()
		t.Cleanup(func() { cancel(); <-done })
		select {
		case <-ready:
		case <-done:
			t.Fatal("cannot listen")
		}
	}
}

// stepLines returns the lines of these files, each once.
func stepLines(t *testing.T, pattern string) (lines []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			all[line] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// numbers has the unread rest of a line.
type numbers struct {
	t    *testing.T
	line string
	rest []string
}

// none is what the models write for no process.
const none = 255

func (r *numbers) next() int {
	r.t.Helper()
	if len(r.rest) == 0 {
		r.t.Fatalf("a line with too few numbers: %s", r.line)
	}
	n, err := strconv.Atoi(r.rest[0])
	if err != nil {
		r.t.Fatal(err)
	}
	r.rest = r.rest[1:]
	return n
}

func (r *numbers) list(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = r.next()
	}
	return all
}

// tick is one tick of the models, in ms. No test is late by that much. A shortTick is for steps in which no lease may be longer
// than 10 s.
const (
	tick      = 100_000
	shortTick = 4000
)

func inTicks(n int) string { return strconv.Itoa(n * tick) }

// ticks returns how many ticks have started after this many ms.
func ticks(ms float64, tick int) int { return int(math.Ceil(max(ms, 0) / float64(tick))) }

// step is one step of a model's server, for the scripts to execute. was returns the initial state of Redis for a clock at now
// (ms).
type step struct {
	calls    []call
	was, has func(now int64) content
	text     func(key string, c content, now int64) string // the content of a key, without times in ms
	answers  func(reply any) string                        // the reply of the first call, in the terms of the model
	answer   string
	tick     int // ms
}

// call is a run of a script.
type call struct {
	Script string   `json:"script"`
	Keys   []string `json:"keys"`
	Args   []string `json:"args"`
}

// content is the content of Redis, by key.
type content map[string]value

// value is the content of a key.
type value struct {
	kind  string
	words []string // for a list or a string its elements; for a hash and a zset fields and values, or members and scores
	ends  int      // time until it expires, in ms; 0 for never, negative for any expiry, and both are not compared
}

// put returns the commands that create a key.
func (v value) put(key string) (all [][]string) {
	command := map[string]string{"hash": "HSET", "list": "RPUSH", "zset": "ZADD", "string": "SET"}[v.kind]
	words := slices.Clone(v.words)
	if v.kind == "zset" {
		for i := 0; i < len(words); i += 2 {
			words[i], words[i+1] = words[i+1], words[i]
		}
	}
	all = append(all, append([]string{command, key}, words...))
	if v.ends != 0 {
		all = append(all, []string{"PEXPIRE", key, strconv.Itoa(max(v.ends, -v.ends))})
	}
	return all
}

// stage makes the scripts execute these steps, each at one instant of the server, and returns the faults of each.
func stage(t *testing.T, rdb rueidis.Client, play *rueidis.Lua, steps []step) (faults []string) {
	t.Helper()
	began := now(t, rdb)
	runs := make([]rueidis.LuaExec, 0, len(steps))
	for _, s := range steps {
		put := [][]string{}
		for key, v := range s.was(began) {
			put = append(put, v.put(key)...)
		}
		todo, err := json.Marshal(map[string]any{"put": put, "calls": s.calls})
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, rueidis.LuaExec{Args: []string{string(todo)}})
	}
	for i, reply := range play.ExecMulti(t.Context(), rdb, runs...) {
		all, err := reply.ToAny()
		if err != nil {
			faults = append(faults, fmt.Sprintf("  %v\n", err))
			continue
		}
		faults = append(faults, steps[i].fault(began, all.([]any)))
	}
	return faults
}

// player returns a script that stores keys in Redis, runs one of the scripts, and reads all keys. Because it is a single
// script, no lease gets shorter in the meantime.
func player(scripts []string) string {
	var b strings.Builder
	b.WriteString("local scripts = {}\n")
	for _, name := range scripts {
		fmt.Fprintf(&b, "scripts[%q] = function(KEYS, ARGV)\n%s\nend\n", name, luascripts.Text(name))
	}
	b.WriteString(`
local todo = cjson.decode(ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('DEL', key) end
for _, command in ipairs(todo.put) do redis.call(unpack(command)) end
local answers, found = {}, {}
for i, call in ipairs(todo.calls) do answers[i] = scripts[call.script](call.keys, call.args) end
local read = {
  hash = function(key) return redis.call('HGETALL', key) end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  string = function(key) return {redis.call('GET', key)} end,
}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  found[i] = {key, kind, redis.call('PTTL', key), read[kind](key)}
end
local time = redis.call('TIME')
return {answers[1] or 'no answer', time[1] * 1000 + math.floor(time[2] / 1000), found}
`)
	return b.String()
}

// fault returns how the scripts differ from the model, or "". reply is the reply of the player.
func (s *step) fault(began int64, reply []any) string {
	var b strings.Builder
	if got := s.answers(reply[0]); got != s.answer {
		fmt.Fprintf(&b, "  answered: %s; in the model: %s\n", got, s.answer)
	}
	now, got, want := reply[1].(int64), content{}, s.has(began)
	left := map[string]int64{}
	for _, found := range reply[2].([]any) {
		f := found.([]any)
		v := value{kind: f[1].(string)}
		for _, word := range f[3].([]any) {
			v.words = append(v.words, word.(string))
		}
		key := f[0].(string)
		got[key], left[key] = v, f[2].(int64)
	}
	for key, v := range want {
		switch text, wanted := s.text(key, got, now), s.text(key, want, began); {
		case text != wanted:
			fmt.Fprintf(&b, "  %s: %s; in the model: %s\n", key, text, wanted)
		case v.ends > 0 && ticks(float64(left[key]), s.tick) != v.ends/s.tick:
			fmt.Fprintf(&b, "  %s: expires in %d ms; in the model in %d\n", key, left[key], v.ends)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			fmt.Fprintf(&b, "  %s: %s; not in the model\n", key, s.text(key, got, now))
		}
	}
	if b.Len() > 0 {
		fmt.Fprintf(&b, "  was: %s\n", show(s.was(began)))
	}
	return b.String()
}

func show(s content) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "%s%v", key, s[key].words)
		if s[key].ends > 0 {
			fmt.Fprintf(&b, " for %d ms", s[key].ends)
		}
		b.WriteString("; ")
	}
	return b.String()
}

// plainSteps reads a step of plain.pml. A step occurs several times if the script has several ways to execute it. The number of
// grants and the mark in the queue make the script choose one, and free the lock.
func plainSteps(r *numbers) []step {
	processes, names, lease, offer := r.next(), r.next(), r.next(), r.next()
	whose, dead := r.list(names), r.list(processes)
	owner := func(name int) string {
		p := whose[name]
		return lineClient(p, dead[p] == 1) + ":" + strconv.Itoa(name+1)
	}
	ms := func(ticks int) string { return strconv.Itoa(ticks * shortTick) }

	// The state of the server: the holder, its lease, and the queue. grants is the number of hand-offs since the lock was free,
	// followed by a zero, the mark.
	has := func() func(now int64, grants string) content {
		holder, left, standing := r.next(), r.next(), r.next()
		line := r.list(processes)[:standing]
		return func(now int64, grants string) content {
			if holder == none {
				return content{}
			}
			fields := []string{owner(holder), "1"}
			if standing > 0 || grants != "0 " {
				text := fmt.Sprintf("%s%d|", grants, now-600_000)
				for _, name := range line {
					text += owner(name) + " " + ms(offer) + " 0 0 0;"
				}
				fields = append(fields, "leasehold_line", text)
			}
			return content{"lock": {"hash", fields, left * shortTick}}
		}
	}

	was := has()
	name, nextOwner, letGo, command, answer := r.next(), r.next(), r.next() == 1, r.next(), r.next()
	then := has()
	s := step{tick: shortTick}
	s.has = func(now int64) content { return then(now, "0 ") }
	s.text = func(key string, c content, _ int64) string {
		var holders, line []string
		for i := 0; i+1 < len(c[key].words); i += 2 {
			field, text := c[key].words[i], c[key].words[i+1]
			if field != "leasehold_line" {
				holders = append(holders, field+"="+text)
				continue
			}
			_, entries, _ := strings.Cut(text, "|")
			for entry := range strings.SplitSeq(strings.TrimSuffix(entries, ";"), ";") {
				words := strings.Fields(entry) // the last three are about processes that receive no messages, which the model does not have
				line = append(line, words[:min(2, len(words))]...)
			}
		}
		return fmt.Sprint(holders, " line ", line)
	}
	place := strings.Join([]string{ms(offer), "0", ms(1), ms(1)}, " ")
	ways := []string{"0 "}
	switch command {
	case 1:
		s.calls = []call{{"reentrant_acquire", []string{"lock"}, []string{owner(name), ms(lease), place, "1"}}}
	case 2:
		args := []string{owner(name), "PUBLISH", "1", "0"}
		if nextOwner != none {
			args = append(args, owner(nextOwner), ms(offer), ms(1), ms(1), "0", "0")
		}
		s.calls = []call{{"reentrant_release", []string{"lock"}, args}}
		ways = []string{"0 ", "1 ", "1 0"}
		if letGo {
			ways = []string{"64000 ", "4 0"}
		}
	case 3:
		s.calls = []call{{"reentrant_renew", []string{"lock"}, []string{ms(lease), owner(name)}}}
	default:
		r.t.Fatalf("a line with an unknown command: %s", r.line)
	}
	s.answers = func(reply any) string {
		switch reply := reply.(type) {
		case string:
			return "granted"
		case []any:
			if command == 3 && len(reply) == 3 && reply[2] == int64(-2) {
				return "nothing"
			}
			return map[bool]string{true: "granted", false: "refused"}[command == 3]
		case int64:
			if text := map[int64]string{-2: "nothing", 1: "freed", 2: "let go"}[reply]; command == 2 && text != "" {
				return text
			}
			if command == 1 && reply >= 0 {
				return "refused"
			}
		}
		return fmt.Sprint(reply)
	}
	s.answer = map[int]string{1: "granted", 2: "refused", 3: "freed", 4: "granted", 5: "let go", 6: "nothing"}[answer]

	var all []step
	for _, grants := range ways {
		s.was = func(now int64) content { return was(now, grants) }
		all = append(all, s)
	}
	return all
}

// fairSteps reads a step of fair.pml.
func fairSteps(r *numbers) []step {
	callers, processes, lease, offer, waiterTimeout := r.next(), r.next(), r.next(), r.next(), r.next()
	client := func(c int) string { return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-00000000000%d", c%processes) }
	number := func(c int) string {
		if c == none {
			return "-"
		}
		return strconv.Itoa(c + 1)
	}
	owner := func(c int) string { return client(c) + ":" + number(c) }
	members := func(set int) (all []int) {
		for c := range callers {
			if set>>c&1 == 1 {
				all = append(all, c)
			}
		}
		return all
	}
	// The state of the server: the holder, its lease, the queue, and the deadlines plus one, because 0 means none.
	has := func() func(now int64) content {
		holder, left, size := r.next(), r.next(), r.next()
		queue, ends := r.list(callers + 1)[:size], r.list(callers)
		return func(now int64) content {
			s := content{}
			if holder != none {
				s["lock"] = value{"hash", []string{owner(holder), "1"}, left * tick}
			}
			waiting, deadlines := value{kind: "list"}, value{kind: "zset"}
			for _, c := range queue {
				waiting.words = append(waiting.words, owner(c))
			}
			for c, at := range ends {
				if at > 0 {
					deadlines.words = append(deadlines.words, owner(c), strconv.FormatInt(now+int64(at-1)*tick, 10))
				}
			}
			if len(waiting.words) > 0 {
				s["queue"] = waiting
			}
			if len(deadlines.words) > 0 {
				s["timeouts"] = deadlines
			}
			return s
		}
	}

	s := step{was: has(), tick: tick}
	command, name, set, nextOwner, answer, first, second, notified := r.next(), r.next(), r.next(), r.next(), r.next(), r.next(), r.next(), r.next()
	then := has()
	s.has = func(now int64) content {
		all := then(now)
		if notified != none {
			all["channel:"+client(notified)+":fair"] = value{kind: "list", words: []string{number(notified)}}
		}
		return all
	}
	s.text = func(key string, c content, now int64) string {
		v := c[key]
		words := slices.Clone(v.words)
		if v.kind == "zset" {
			words = nil
			for i := 0; i < len(v.words); i += 2 {
				deadline, _ := strconv.ParseFloat(v.words[i+1], 64)
				words = append(words, fmt.Sprint(v.words[i], "=", ticks(deadline-float64(now), tick)))
			}
			slices.Sort(words)
		}
		return fmt.Sprint(words)
	}

	// The model only has two owners that follow in the queue.
	granted := func(numbers string) string {
		next := append(strings.Fields(numbers), "-", "-")
		return "granted, then " + next[0] + " " + next[1]
	}
	keys := []string{"lock", "queue", "timeouts", "never"}
	switch command {
	case 1:
		s.calls = []call{{"fair_acquire", keys, []string{owner(name), inTicks(lease), "1", inTicks(waiterTimeout), "0"}}}
		s.answers = func(reply any) string {
			switch list, _ := reply.([]any); len(list) {
			case 3:
				return granted(fmt.Sprint(list[2]))
			case 2:
				return "refused"
			}
			return fmt.Sprint(reply)
		}
		s.answer = "refused"
		if answer == 1 {
			s.answer = granted(number(first) + " " + number(second))
		}
	case 2, 3: // waiters enter, or it is a heartbeat
		args := []string{"channel", "RPUSH", "1", "0"}
		if command == 2 {
			args[3] = strconv.Itoa(len(members(set)))
		}
		for _, c := range members(set) {
			args = append(args, inTicks(waiterTimeout), owner(c))
		}
		s.calls = []call{{"fair_keep", keys, args}}
		s.answers = func(reply any) string {
			list, _ := reply.([]any)
			if len(list) != 1+len(members(set)) {
				return fmt.Sprint(reply)
			}
			var asks []int
			for i, n := range list[1:] {
				if n == int64(1) || n == int64(-2) {
					asks = append(asks, members(set)[i])
				}
			}
			return fmt.Sprint("these ask: ", asks)
		}
		s.answer = fmt.Sprint("these ask: ", members(answer))
	case 4:
		args := []string{owner(name), "0", "channel", "RPUSH", "0", "0", "", inTicks(offer)}
		if nextOwner != none {
			args[6] = owner(nextOwner)
		}
		for _, c := range members(set) {
			args = append(args, owner(c))
		}
		s.calls = []call{{"fair_release", keys, args}}
		s.answers = func(reply any) string {
			switch list, _ := reply.([]any); {
			case len(list) == 4:
				return granted(fmt.Sprint(list[3]))
			case len(list) == 2 && list[0] == int64(1):
				return "freed"
			case len(list) == 2 && list[0] == int64(-2):
				return "nothing"
			}
			return fmt.Sprint(reply)
		}
		s.answer = map[int]string{3: "freed", 4: granted(number(first) + " " + number(second)), 5: "nothing"}[answer]
	default:
		r.t.Fatalf("a line with an unknown command: %s", r.line)
	}
	return []step{s}
}

// rwSteps reads a step of rw.pml. If dead readers may have left fields in the hash, the step runs twice, without and with these
// fields.
func rwSteps(r *numbers) []step {
	callers, lease, writers, arrivals := r.next(), r.next(), r.next(), r.next()
	came, besides := r.list(callers), r.list(callers) // the writer with which a caller reads as the same owner
	reader := func(c int) string { return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-000000000001:%d", 2*c+1) }
	writer := func(c int) string { return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-000000000001:%d", 2*c+2) }
	expiry := func(c int) string { return "beside:" + reader(c) + ":rwlock_timeout:1" }
	// Callers arrived one after the other, long ago. arrived returns when caller number i arrived.
	arrived := func(i int, now int64) int64 { return now - int64(20-i)*tick }
	ms := func(at int64) string { return strconv.FormatInt(at, 10) }

	// The state of the server: the mode, the writer, the remaining leases of the writer and of readers, the writer intent, and
	// the reservation. Of the reservation: its reader, whether it has taken effect, whether a writer has passed, and how many
	// callers arrived before it took effect.
	has := func() func(now int64, dead bool) content {
		mode, who, left, leases := r.next(), r.next(), r.next(), r.list(callers)
		intent, turn, began, entered, start := r.next(), r.next(), r.next() == 1, r.next() == 1, r.next()
		return func(now int64, dead bool) content {
			s, fields := content{}, []string{"mode", []string{"", "read", "write"}[mode]}
			for c, left := range leases {
				if left > 0 {
					s[expiry(c)] = value{"string", []string{"1"}, left * tick}
				}
				if left > 0 || dead && (mode == 1 || mode == 2 && besides[c] == who) {
					fields = append(fields, reader(c), "1")
				}
			}
			switch mode {
			case 1:
				s["lock"] = value{"hash", fields, slices.Max(leases) * tick}
			case 2:
				s["lock"] = value{"hash", append(fields, writer(who)+":write", "1"), left * tick}
			}
			if intent != none {
				s["wish"] = value{"string", []string{writer(intent) + " " + ms(arrived(came[intent], now))}, -tick}
			}
			if turn != none || began {
				owner, since, at := "", int64(0), int64(0)
				if turn != none {
					owner, since = reader(turn), arrived(came[turn], now)
				}
				switch {
				case began:
					at = arrived(start, now) - tick/2
				case entered:
					at = 1
				}
				s["turn"] = value{"string", []string{owner + " " + ms(since) + " " + ms(at)}, -tick}
			}
			return s
		}
	}

	was := has()
	command, name, answer, notified := r.next(), r.next(), r.next(), r.next() == 1
	then := has()
	s := step{tick: tick}
	s.has = func(now int64) content {
		all := then(now, false)
		if notified {
			all["channel"] = value{kind: "list"}
		}
		return all
	}
	s.text = func(key string, c content, now int64) string {
		v := c[key]
		var words []string
		switch {
		case key == "lock":
			for i := 0; i < len(v.words); i += 2 {
				field := v.words[i]
				if _, alive := c["beside:"+field+":rwlock_timeout:1"]; alive || field == "mode" || strings.HasSuffix(field, ":write") {
					words = append(words, field+"="+v.words[i+1])
				}
			}
			slices.Sort(words)
		case key == "channel":
			words = []string{"a message"}
			if v.kind == "" {
				words = []string{"none"}
			}
		case key == "wish" || key == "turn":
			for word := range strings.SplitSeq(strings.Join(v.words, ""), " ") {
				if at, err := strconv.ParseInt(word, 10, 64); err == nil && at > 1 {
					came := 0 // until then; now is slightly later
					for came < arrivals && arrived(came, now)-tick/4 <= at {
						came++
					}
					word = fmt.Sprint("after ", came)
				}
				words = append(words, word)
			}
		default:
			words = v.words
		}
		return fmt.Sprint(words)
	}

	waited := inTicks(20 - came[name])
	writes := writers>>name&1 == 1
	granted := func(reply any) string {
		switch n := reply.(type) {
		case string:
			return "granted"
		case int64:
			if n >= 0 {
				return "refused"
			}
		}
		return fmt.Sprint(reply)
	}
	const beside, channel, publish, yield, stay = "beside", "channel", "RPUSH", "1", "100000"
	acquire := []string{"lock", "wish", "turn", "never"}
	read := func(writer, waited, stay string) call {
		return call{"rw_read_acquire", acquire, []string{reader(name), inTicks(lease), "1", writer, waited, yield, beside, stay}}
	}
	switch command {
	case 1:
		s.calls, s.answers = []call{read("", waited, stay)}, granted
		if writes {
			s.calls[0] = call{"rw_write_acquire", acquire, []string{writer(name), inTicks(lease), "1", waited, stay, beside}}
		}
	case 2:
		s.calls = []call{{"rw_read_release", []string{"lock", "turn", "never"}, []string{reader(name), "0", beside, channel, publish}}}
		if writes {
			s.calls[0] = call{"rw_write_release", acquire, []string{writer(name), "0", beside, channel, publish}}
		}
		s.answers = func(any) string { return "granted" } // the model does not report whether there was a hold
	case 3, 5:
		s.calls = []call{{"reentrant_renew", []string{"lock"}, []string{inTicks(lease), writer(name) + ":write"}}}
		if command == 5 {
			s.calls[0] = call{"rw_read_renew", []string{"never", "lock"}, []string{inTicks(lease), reader(name), beside}}
		}
		s.answers = func(reply any) string {
			switch list, _ := reply.([]any); {
			case len(list) == 1:
				return "granted"
			case len(list) == 3 && list[2] == int64(-2):
				return "refused"
			}
			return fmt.Sprint(reply)
		}
	case 4: // with a writer, which continues as this reader
		s.calls, s.answers = []call{read(writer(besides[name]), "0", "0")}, granted
	default:
		r.t.Fatalf("a line with an unknown command: %s", r.line)
	}
	s.answer = map[int]string{1: "granted", 2: "refused", 3: "refused"}[answer]

	s.was = func(now int64) content { return was(now, false) }
	all := []step{s}
	if len(was(0, true)["lock"].words) > len(was(0, false)["lock"].words) {
		s.was = func(now int64) content { return was(now, true) }
		all = append(all, s)
	}
	return all
}
