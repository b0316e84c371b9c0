package place

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// A telling is an event of a history in the words of the model (directory model of the
// repository), which has to be able to follow what the real places do.
type telling [4]uint8

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
)

// What Redis answers, in the words of the model.
const (
	toldGrant = 1 + iota
	toldRefuse
	toldFreed
	toldInherit
	toldAside
	toldNothing
)

const toldNone = 255

func (w *world) tell1(verb uint8, args ...int) {
	e := telling{verb}
	for i, a := range args {
		e[i+1] = uint8(a)
	}
	w.told = append(w.told, e)
}

func (w *world) index(c *call) int {
	for i := range w.calls {
		if w.calls[i] == c {
			return i
		}
	}
	return toldNone
}

// nameOf returns the number of an owner string, from 0 on.
func nameOf(t *Tenure) int {
	if t == nil {
		return toldNone
	}
	n, _ := strconv.Atoi(t.Name[2:])
	return n - 1
}

func (w *world) numbered(k *command) {
	w.sent++
	k.number = w.sent
}

func (w *world) tellRun(k *command) {
	if k.number == 0 {
		return
	}
	answer := toldRefuse
	switch r := k.reply; {
	case k.errand == toAsk && r.granted:
		answer = toldGrant
	case k.errand == toAsk:
	case r.gone:
		answer = toldNothing
	case r.aside:
		answer = toldAside
	case r.token != 0:
		answer = toldInherit
	default:
		answer = toldFreed
	}
	w.tell1(tellRun, k.number-1, answer)
}

func (w *world) tellAnswer(k *command, broken bool) {
	late := 0
	if k.late {
		late = 1
	}
	switch {
	case broken && k.copied:
		w.tell1(tellBreak, k.number-1, 1)
	case broken:
		w.tell1(tellBreak, k.number-1, 0)
	case k.errand == toAsk:
		w.tell1(tellAnswerAsk, k.number-1, toldNone, late)
	default:
		w.tell1(tellAnswerRelease, k.number-1, 0, late)
	}
}

// tellHold says that the latest answer made c a holder.
func (w *world) tellHold(c int) { w.told[len(w.told)-1][2] = uint8(c) }

// Histories for the model, a line each, are written to the file that LEASEHOLD_TRACES names.
// A line begins with how many processes there are; the callers, by their number, are of them in
// turn. LEASEHOLD_SEED begins with other histories.
func TestTraces(t *testing.T) {
	name := os.Getenv("LEASEHOLD_TRACES")
	if name == "" {
		t.Skip("LEASEHOLD_TRACES names no file")
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	n, events := 0, 0
	first, _ := strconv.ParseUint(os.Getenv("LEASEHOLD_SEED"), 10, 64)
	for seed := first; n < 4000; seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		c := &cast{procs: 2 + r.IntN(2), pause: r.IntN(2) == 0, aside: r.IntN(3) == 0, fine: false, faults: r.IntN(4)}
		for i := range 2 + r.IntN(5) {
			c.calls = append(c.calls, role{proc: i % c.procs, terms: &plainTerms})
		}
		w := newWorld(c)
		for range 10 + r.IntN(50) {
			all := w.enabled()
			if len(all) == 0 {
				break
			}
			w.step(all[r.IntN(len(all))])
		}
		w.drain()
		if w.wrong != nil {
			t.Fatalf("seed %d: %v", seed, w.wrong)
		}
		if len(w.told) > 110 || w.named > 16 || w.sent > 30 {
			continue
		}
		fmt.Fprint(out, c.procs, " ")
		for _, e := range w.told {
			fmt.Fprint(out, e[0], " ", e[1], " ", e[2], " ", e[3], " ")
		}
		fmt.Fprintln(out)
		n, events = n+1, events+len(w.told)
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d histories, %d events", n, events)
}
