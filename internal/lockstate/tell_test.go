package lockstate

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// A telling is an event of a history in the terms of a model (directory proof/model). The model must
// accept everything that the real states do. A telling is a verb with its arguments. For two of the
// models, the resulting states follow.
type telling [23]uint8

// tale is a history in the terms of the cast's model. It is not part of the fingerprint of a world.
type tale struct {
	told         []telling
	sent         int            // commands
	untold       bool           // the model has no term for something that happened
	crossing     bool           // tellCross has said why the call leaves
	ids          map[string]int // the callers that are owner strings, by these strings
	acquisitions []*Acquisition // their acquisitions
	stated       int            // the number of tellings at the latest tellState
}

// figure is a call in the terms of the model.
type figure struct {
	id      int  // the latest caller, if callers are owner strings
	anew    bool // it has restarted
	lingers bool // it is in the queue, but the model has it elsewhere
	rides   bool // another reader's request admitted it, and it has not been notified
}

// ordinals are the numbers of a command, from 1; 0 means none. They are not part of the fingerprint
// either.
type ordinals struct {
	number int
	entry  int // of a Round: the number of its entry
}

// model selects the model of a history. In the models of the fair and read/write locks, callers are
// owner strings: a call that restarts is another caller.
type model uint8

const (
	ofPlain model = iota
	ofFair
	ofRW
)

// The events of the model, by their numbers there.
const (
	tellStart uint8 = 1 + iota
	tellAsk
	tellTake
	tellCancel
	tellUnlock
	tellRun
	tellAnswerAsk
	tellAnswerRelease
	tellBreak
	tellTimeOut
	tellCross
	tellLose
	tellSettle
	tellExpire
	tellEnter
	tellBeat
	tellAnswerBeat
	tellStrike
	tellMessage
	tellLeave
	tellGiveBack
)

// The model of the read/write lock reuses these numbers for other events.
const (
	tellGive   = tellTimeOut
	tellRides  = tellCross
	tellDoubts = tellLose
)

// The replies of Redis, in the terms of the model.
const (
	toldGrant = 1 + iota
	toldRefuse
	toldFreed
	toldInherit
	toldAside
	toldNothing
)

const toldNone = 255

// says adds a telling.
func (w *world) says(verb uint8, args ...int) {
	e := telling{verb}
	for i, a := range args {
		e[i+1] = uint8(a)
	}
	w.told = append(w.told, e)
}

// caller returns the number of c.
func (w *world) caller(c *call) int {
	if w.cast.model != ofPlain {
		return c.id
	}
	return slices.Index(w.calls, c)
}

// nameOf returns the number of an owner string, from 0.
func (w *world) nameOf(t *Acquisition) int {
	switch {
	case t == nil:
		return toldNone
	case w.cast.model != ofPlain:
		return w.ids[t.Name]
	}
	n, _ := strconv.Atoi(t.Name[2:])
	return n - 1
}

// namesOf returns a set of callers that are owner strings.
func (w *world) namesOf(all []string) (set int) {
	for _, name := range all {
		set |= 1 << w.ids[name]
	}
	return set
}

// names records the owner string of c's acquisition for c.
func (w *world) names(c *call) {
	if w.cast.model == ofPlain {
		return
	}
	if w.ids == nil {
		w.ids = make(map[string]int)
	}
	w.ids[c.t.Name] = c.id
	w.acquisitions = append(w.acquisitions, c.t)
}

// numbered returns the number of a command that is sent.
func (w *world) numbered() int {
	w.sent++
	return w.sent
}

// tellStart tells that c starts or restarts.
func (w *world) tellStart(c *call, anew bool) {
	if w.cast.model == ofPlain {
		if !anew {
			w.says(tellStart, w.caller(c))
		}
		return
	}
	said := 0
	switch {
	case w.cast.model == ofRW:
		said = int(bit(!c.terms.Reads))
	case anew:
		said = c.id + 1
	}
	c.figure = figure{id: w.cast.procs*c.p.came + c.proc, anew: anew}
	c.p.came++
	w.untold = w.untold || c.id >= 8
	w.says(tellStart, c.id, said)
}

func (w *world) tellAsk(c *call, k *command) {
	k.number = w.numbered()
	if w.cast.model == ofPlain {
		w.says(tellAsk, w.caller(c), w.nameOf(k.t))
	} else {
		w.says(tellAsk, c.id, k.number-1, w.tellBeside(k))
	}
}

// tellTake tells that c takes what its queue was offered. In the model of the fair lock, it leaves the queue separately.
func (w *world) tellTake(c *call) {
	w.says(tellTake, w.caller(c), w.nameOf(c.t))
	c.lingers = w.cast.model == ofFair
}

func (w *world) tellCancel(c *call) {
	switch {
	case w.crossing, c.rides:
	case c.lingers:
		w.tellLingered(c)
	default:
		w.says(tellCancel, w.caller(c))
	}
}

// tellTired tells that c leaves after too many grants that came too late. In the other models it has
// left by that reply.
func (w *world) tellTired(c *call) {
	if w.cast.model == ofPlain {
		w.tellCancel(c)
	}
}

func (w *world) tellTimeOut(k *command) {
	if w.cast.model == ofRW {
		w.tellUnheard(k)
	} else {
		w.says(tellTimeOut, k.number-1)
	}
}

// tellCross tells that c stops waiting just as k was granted.
func (w *world) tellCross(c *call, k *command) {
	if w.cast.model == ofRW {
		w.tellUnheard(k)
		w.says(tellCancel, c.id)
	} else {
		w.says(tellCross, k.number-1)
	}
}

// tellPass tells that c hands the lock off locally.
func (w *world) tellPass(c *call) { w.says(tellUnlock, w.caller(c), 254) }

// tellRelease tells that c unlocks, by the release k. c is nil if no call unlocks.
func (w *world) tellRelease(c *call, k *command) {
	k.number = w.numbered()
	w.tellNextOwner(k.nextOwner)
	if c == nil {
		return
	}
	w.says(tellUnlock, w.caller(c), w.nameOf(k.nextOwner), w.namesOf(k.served))
	if w.cast.model == ofRW {
		w.says(tellGive, w.nameOf(k.t), k.number-1)
	}
}

// tellLose tells that t, which had these holds, is lost.
func (w *world) tellLose(t *Acquisition, ended []*Hold) {
	if w.cast.model == ofRW {
		for _, h := range ended {
			w.says(tellUnlock, h.Of.(*call).id)
		}
		return
	}
	w.says(tellLose, w.nameOf(t))
	w.tellLost(t)
}

func (w *world) tellExpire() {
	if w.cast.model != ofRW {
		w.says(tellExpire)
	}
}

// tellSettle tells that k reconciles what is uncertain.
func (w *world) tellSettle(k *command) {
	if w.cast.model == ofRW {
		k.number = w.numbered()
		w.says(tellGive, w.nameOf(k.t), k.number-1)
	} else {
		w.says(tellSettle, w.nameOf(k.t))
	}
}

// tellSettled tells that k was answered.
func (w *world) tellSettled(k *command) {
	if w.cast.model == ofRW {
		w.says(tellAnswerAsk, k.number-1, toldNone)
	}
}

func (w *world) tellRun(k *command) {
	if k.errand == toKeep {
		w.tellRanRound(k)
	}
	if k.errand > toRelease || k.number == 0 {
		return
	}
	answer := toldRefuse
	switch r := k.reply; {
	case k.errand == toAsk && r.granted:
		answer = toldGrant
	case k.errand == toAsk:
	case r.gone && w.cast.model == ofFair:
		answer = toldNothing - 1 // the lock is not released there
	case r.gone:
		answer = toldNothing
	case r.aside:
		answer = toldAside
	case r.token != 0:
		answer = toldInherit
	default:
		answer = toldFreed
	}
	next := [2]int{toldNone, toldNone}
	for i, name := range k.reply.next {
		if i < len(next) {
			next[i] = w.ids[name]
		}
		w.untold = w.untold || i >= len(next)
	}
	w.says(tellRun, k.number-1, answer, next[0], next[1])
}

func (w *world) tellAnswer(k *command, broken bool) {
	switch {
	case k.errand == toStrike, w.cast.model == ofRW && k.errand == toAsk && k.c == nil:
	case k.errand == toKeep:
		w.tellAnswerRound(k, broken)
	case broken:
		w.says(tellBreak, k.number-1, int(bit(k.copied)))
	case k.errand == toAsk || w.cast.model == ofRW:
		w.says(tellAnswerAsk, k.number-1, toldNone, int(bit(k.late)))
	default:
		w.says(tellAnswerRelease, k.number-1, 0, int(bit(k.late)))
	}
}

// tellHold tells that the latest reply made c an owner.
func (w *world) tellHold(c *call) {
	i := len(w.told) - 1
	for w.told[i][0] != tellAnswerAsk {
		i--
	}
	w.told[i][2] = uint8(w.caller(c))
}

// tellState adds the resulting states to the latest telling. They are sets of callers, in the same
// order in fair.pml and rw.pml.
func (w *world) tellState() {
	if w.cast.model == ofPlain || len(w.told) == w.stated {
		return
	}
	w.stated = len(w.told)
	e := &w.told[w.stated-1]
	e[5] = 1
	add := func(set int, is bool, caller int) {
		if is {
			e[6+set] |= 1 << caller
		}
	}
	if w.cast.model == ofFair {
		w.tellFair(add)
	} else {
		w.tellRW(add)
	}
}

// Histories for the models are written to the files "plain", "fair" and "rw" of the directory that
// LEASEHOLD_TRACES names, one per line. A line starts with the number of processes; callers belong to
// them in turn, by number. LEASEHOLD_SEED selects other histories.
func TestTraces(t *testing.T) {
	dir := os.Getenv("LEASEHOLD_TRACES")
	if dir == "" {
		t.Skip("LEASEHOLD_TRACES is not set")
	}
	t.Run("plain", func(t *testing.T) { traces(t, filepath.Join(dir, "plain"), ofPlain, 5) })
	t.Run("fair", func(t *testing.T) { traces(t, filepath.Join(dir, "fair"), ofFair, 6+fairSets) })
	t.Run("rw", func(t *testing.T) { traces(t, filepath.Join(dir, "rw"), ofRW, 6+rwSets) })
}

// traces writes histories whose tellings have this many numbers each.
func traces(t *testing.T, name string, m model, wide int) {
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	n, events := 0, 0
	first, _ := strconv.ParseUint(os.Getenv("LEASEHOLD_SEED"), 10, 64)
	seed := first
	for ; n < 10000; seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		w, path := anyHistory(r, m)
		if w.wrong != nil {
			t.Fatalf("seed %d: %v, after\n%s", seed, w.wrong, w.cast.story(path))
		}
		if len(w.told) > 110 || w.sent > 30 || m == ofPlain && w.named > 16 || w.untold {
			continue
		}
		fmt.Fprint(out, w.cast.procs, " ")
		for _, e := range w.told {
			for _, number := range e[:wide] {
				fmt.Fprint(out, number, " ")
			}
		}
		fmt.Fprintln(out)
		n, events = n+1, events+len(w.told)
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d histories of %d, %d events", n, seed-first, events)
}

// anyHistory plays a random history for this model, and returns its events until everything has
// ended.
func anyHistory(r *rand.Rand, m model) (w *world, path []event) {
	c := &cast{procs: 2 + r.IntN(2), pause: r.IntN(2) == 0, aside: r.IntN(3) == 0, faults: r.IntN(4), model: m}
	if m != ofPlain {
		c.procs = 1 + r.IntN(3)
	}
	owns := m == ofRW && r.IntN(2) == 0 // usually all calls of a process have the same owner, which reads and writes
	for i := range 2 + r.IntN(5) {
		terms := &plainTerms
		switch {
		case m == ofFair:
			terms = &fairTerms
		case m == ofRW && r.IntN(3) == 0:
			terms = &writeTerms
		case m == ofRW:
			terms = &readTerms
		}
		c.calls = append(c.calls, role{proc: i % c.procs, terms: terms})
		if owns && r.IntN(4) > 0 {
			c.calls[i].owner = uint64(100 + i%c.procs)
		}
	}
	var often [verbs]int // in eighths: an event that is frequent in one history is rare in another
	for v := range often {
		often[v] = 2 + r.IntN(7)
	}
	w = newWorld(c)
	for range 20 + r.IntN(80) {
		all := w.enabled()
		if len(all) == 0 {
			break
		}
		e := all[r.IntN(len(all))]
		if r.IntN(8) >= often[e.verb] || e.verb == cancel && r.IntN(12) > 0 {
			continue // few waiters leave before they have the lock
		}
		path = append(path, e)
		w.step(e)
	}
	w.drain()
	return w, path
}
