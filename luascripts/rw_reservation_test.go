package luascripts_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// turnTime is how long a reservation keeps writers out.
const turnTime = 100 * time.Millisecond

// turn sets a reservation manually: its reader, how long that reader has waited, and how long ago the
// reservation took effect, such as "G5 10m 1m". "G5 10m -" has not taken effect. Neither has "G5 10m
// out", which waits for the writer that may pass. "- - 1m" has no reader any more. It lives for d.
func (l rw) turn(turn string, d time.Duration) {
	l.t.Helper()
	words := strings.Fields(turn)
	if len(words) == 0 {
		return
	}
	at := now(l.t, l.rdb)
	ago := func(word string) int64 {
		switch word {
		case "-":
			return 0
		case "out":
			return 1
		}
		d, err := time.ParseDuration(word)
		if err != nil {
			l.t.Fatal(err)
		}
		return at - d.Milliseconds()
	}
	reader := ""
	if words[0] != "-" {
		reader = owner(words[0])
	}
	do(l.t, l.rdb, "SET", l.keys.Reservation, fmt.Sprintf("%s %d %d", reader, ago(words[1]), ago(words[2])))
	l.ends(l.keys.Reservation, d)
}

// turned returns the reservation in the form of turn, or "" if there is none. Times are rounded down to minutes.
func (l rw) turned() string {
	l.t.Helper()
	m := do(l.t, l.rdb, "GET", l.keys.Reservation)
	if m.IsNil() {
		return ""
	}
	text, _ := m.ToString()
	words := strings.Split(text, " ")
	if len(words) != 3 {
		l.t.Fatalf("the turn is %q", text)
	}
	at := now(l.t, l.rdb)
	for i, word := range words {
		switch ms, err := strconv.ParseInt(word, 10, 64); {
		case word == "" || word == "0":
			words[i] = "-"
		case i == 2 && word == "1":
			words[i] = "out"
		case i == 0:
			words[i] = short(word)
		case err != nil:
			l.t.Fatalf("the turn is %q", text)
		default:
			words[i] = fmt.Sprintf("%dm", int((time.Duration(at-ms) * time.Millisecond).Minutes()))
		}
	}
	return strings.Join(words, " ")
}

// G1, which has been waiting for five minutes, sends a read request. All keys live long.
func TestReservation_aReaderRequests(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct {
			name          string
			before        string
			intent        string
			turn          string
			waiterTimeout time.Duration
			verdict       luascripts.Verdict
			after         string        // the reservation afterward
			life          time.Duration // the TTL of the reservation
		}{
			{"another writes", "write G2:write=1", "", "", waiterTimeout, luascripts.Held, "G1 5m out", waiterTimeout},
			{"another writes, and it does not wait", "write G2:write=1", "", "", 0, luascripts.Held, "", 0},
			{"behind a reader that came before", "write G2:write=1", "", "G5 10m -", waiterTimeout, luascripts.Held, "G5 10m -", long},
			{"behind a reader that came later", "write G2:write=1", "", "G5 1m -", waiterTimeout, luascripts.Held, "G1 5m out", waiterTimeout},
			{"again", "write G2:write=1", "", "G1 10m -", waiterTimeout, luascripts.Held, "G1 10m out", waiterTimeout},
			{"again, and a delay made it seem older", "write G2:write=1", "", "G1 1m -", waiterTimeout, luascripts.Held, "G1 5m out", waiterTimeout},
			{"a writer took it in the turn of a reader", "write G2:write=1", "", "G1 5m 1m", waiterTimeout, luascripts.Held, "G1 5m out", waiterTimeout},
			{"a writer took it in the turn of others", "write G2:write=1", "", "- - 1m", waiterTimeout, luascripts.Held, "G1 5m out", waiterTimeout},
			{"behind a writer that came before", "read G2=1(1)", "G3 10m", "", waiterTimeout, luascripts.Held, "G1 5m -", waiterTimeout},
			{"behind a writer that came before, and another has passed it", "read G2=1(1)", "G3 10m", "G1 5m out", waiterTimeout, luascripts.Held, "G1 5m out", waiterTimeout},
			{"behind a writer, after the turn began", "read G2=1(1)", "G3 10m", "- - 7m", waiterTimeout, luascripts.Held, "G1 5m 7m", waiterTimeout},
			{"behind a writer, in the turn of a reader that came before", "", "G3 10m", "G5 8m 7m", waiterTimeout, luascripts.Held, "G5 8m 7m", long},
			{"past a writer, in its turn", "", "G3 10m", "G1 5m 1m", waiterTimeout, luascripts.Done, "- - 1m", long},
			{"past a writer, in its turn, beside others", "read G2=1(1)", "G3 10m", "G1 5m 1m", waiterTimeout, luascripts.Done, "- - 1m", long},
			{"past a writer, in the turn of another", "", "G3 10m", "G5 5m 1m", waiterTimeout, luascripts.Done, "G5 5m 1m", long},
			{"past a writer, in the turn of others", "read G2=1(1)", "G3 10m", "- - 1m", waiterTimeout, luascripts.Done, "- - 1m", long},
			{"it writes itself, past its own turn", "write G1:write=1", "", "G1 5m out", waiterTimeout, luascripts.Done, "", 0},
			{"it is free", "", "", "G1 5m -", waiterTimeout, luascripts.Done, "", 0},
			{"it is free, and another waits", "", "", "G5 10m -", waiterTimeout, luascripts.Done, "G5 10m -", long},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, long)
				l.intent(c.intent, long)
				l.turn(c.turn, long)
				for range 2 { // the second copy has no further effect
					got := l.asksToRead("G1", func(q *luascripts.Request) {
						q.Writer, q.Waited, q.WaiterTimeout = owner("G1"), 5*time.Minute, c.waiterTimeout
					})
					check(t, "reply", got.Verdict, c.verdict, nil)
					if got := l.turned(); got != c.after {
						t.Errorf("the turn is %q, want %q", got, c.after)
					}
					if c.life > 0 {
						about(t, "the turn", pttl(t, l.rdb, l.keys.Reservation), c.life)
					}
				}
			})
		}
	})
}

// The writer that passed a reader has ended without a release, for example because its lease expired. G1, which has been
// waiting for five minutes, sends a read request before the next writer's request. Its request makes the reservation take
// effect.
func TestReservation_aReaderBeginsTheTurn(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct{ name, intent, turn, after string }{
			{"it was passed", "", "G1 5m out", "- - 0m"},
			{"it was passed, and came after a writer that waits", "G3 10m", "G1 5m out", "- - 0m"},
			{"another was passed, and both came after a writer that waits", "G3 10m", "G5 8m out", "G5 8m 0m"},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				for {
					l.clear()
					l.intent(c.intent, long)
					l.turn(c.turn, long)
					began := time.Now()
					var replies []luascripts.Verdict
					var turns []string
					for range 2 { // the second copy has no further effect
						replies = append(replies, l.asksToRead("G1", func(q *luascripts.Request) { q.Waited, q.WaiterTimeout = 5*time.Minute, waiterTimeout }).Verdict)
						turns = append(turns, l.turned())
					}
					left := pttl(t, l.rdb, l.keys.Reservation)
					if time.Since(began) >= turnTime-2*time.Millisecond {
						continue // the reservation may have expired
					}
					if want := []luascripts.Verdict{luascripts.Done, luascripts.Done}; !slices.Equal(replies, want) {
						t.Errorf("replies: %v, want %v", replies, want)
					}
					if want := []string{c.after, c.after}; !slices.Equal(turns, want) {
						t.Errorf("the turns are %q, want %q", turns, want)
					}
					about(t, "the turn", left, turnTime)
					return
				}
			})
		}
	})
}

// G1, which has been waiting for five minutes, sends a write request.
func TestReservation_aWriterRequests(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct {
			name         string
			before       string
			turn         string
			verdict      luascripts.Verdict
			left         time.Duration
			storedIntent string
			after        string // the reservation, if it has changed
		}{
			{"a reader waits, and no writer has passed it", "", "G5 10m -", luascripts.Done, 0, "", "G5 10m out"},
			{"the turn of a reader", "", "G5 10m 1m", luascripts.Held, time.Minute, "G1 5m", ""},
			{"the turn of a reader that came as it began", "", "G5 1m 1m", luascripts.Held, time.Minute, "G1 5m", ""},
			{"the turn of a reader, and the dead read", "read G2=1()", "G5 10m 1m", luascripts.Held, time.Minute, "G1 5m", ""},
			{"the turn of a reader, and others read", "read G2=1(1)", "G5 10m 1m", luascripts.Held, long, "G1 5m", ""},
			{"another writes, which has passed a reader", "write G2:write=1", "G5 10m out", luascripts.Held, long, "G1 5m", ""},
			{"others read, and a writer has passed a reader", "read G2=1(1)", "G5 10m out", luascripts.Held, long, "G1 5m", ""},
			{"a reader came after the turn began", "", "G5 1m 10m", luascripts.Done, 0, "", "G5 1m out"},
			{"the waiting reader had its turn", "", "- - 1m", luascripts.Done, 0, "", ""},
			{"it writes", "write G1:write=1", "G5 10m 1m", luascripts.Done, 0, "", ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, long)
				l.turn(c.turn, time.Minute)
				for range 2 {
					got := l.asksToWrite("G1", func(q *luascripts.Request) { q.Waited = 5 * time.Minute })
					check(t, "reply", got.Verdict, c.verdict, nil)
					about(t, "left", got.Left, c.left)
					if got := l.storedIntent(); got != c.storedIntent {
						t.Errorf("the intent is %q, want %q", got, c.storedIntent)
					}
					if got, want := l.turned(), cmp.Or(c.after, c.turn); got != want {
						t.Errorf("the turn is %q, want %q", got, want)
					}
				}
			})
		}
	})
}

func TestReservation_aWriterLeaves(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct {
			name   string
			before string
			turn   string
			leave  int
			after  string
			begins bool
		}{
			{"a reader waits", "write G1:write=1", "G5 10m -", 0, "G5 10m 0m", true},
			{"a reader has let it pass", "write G1:write=1", "G5 10m out", 0, "G5 10m 0m", true},
			{"a reader waits, and the writer reads on", "write G1:write=1 G8=1(1)", "G5 10m -", 0, "G5 10m 0m", true},
			{"nobody waits", "write G1:write=1", "", 0, "", false},
			{"others had their turn", "write G1:write=1", "- - 1m", 0, "- - 1m", false},
			{"in part", "write G1:write=2", "G5 10m -", 1, "G5 10m -", false},
			{"it only waits", "write G2:write=1", "G5 10m -", 0, "G5 10m -", false},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				for {
					l.clear()
					l.held(c.before, long)
					l.turn(c.turn, time.Minute)
					began := time.Now()
					_, err := luascripts.ReleaseWrite(t.Context(), l.rdb, l.keys, owner("G1"), c.leave)
					got, left := l.turned(), pttl(t, l.rdb, l.keys.Reservation)
					if time.Since(began) >= turnTime-2*time.Millisecond {
						continue // the reservation may have expired
					}
					if err != nil || got != c.after {
						t.Errorf("the turn is %q, %v, want %q", got, err, c.after)
					}
					switch {
					case c.begins:
						about(t, "the turn", left, turnTime)
					case c.after != "":
						about(t, "the turn", left, time.Minute)
					}
					return
				}
			})
		}
	})
}

func TestReservation_aReaderLeaves(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		for _, c := range []struct {
			name     string
			before   string
			turn     string
			leave    int
			verdict  luascripts.Verdict
			after    string
			notified int
		}{
			{"it only waits", "write G2:write=1", "G1 5m -", 0, luascripts.Gone, "", 1},
			{"it only waits, in its turn", "", "G1 5m 1m", 0, luascripts.Gone, "", 1},
			{"it only waits, behind others", "write G2:write=1", "G5 5m -", 0, luascripts.Gone, "G5 5m -", 0},
			{"in part", "read G1=2(1,2)", "G1 5m -", 1, luascripts.Done, "G1 5m -", 0},
			{"the last", "read G1=1(1)", "- - 1m", 0, luascripts.Done, "", 1},
			{"the last, and another waits", "read G1=1(1)", "G5 5m 7m", 0, luascripts.Done, "G5 5m 7m", 1},
			{"others read on", "read G1=1(1) G2=1(1)", "- - 1m", 0, luascripts.Done, "- - 1m", 0},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, long)
				l.turn(c.turn, time.Minute)
				got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), c.leave)
				check(t, "release", got, c.verdict, err)
				if got := l.turned(); got != c.after {
					t.Errorf("the turn is %q, want %q", got, c.after)
				}
				var notified []string
				for range c.notified {
					notified = append(notified, l.keys.Channel+" 0")
				}
				e.expect(notified...)
			})
		}
	})
}

// Two writers return immediately each time, and two readers wait.
//
//  1. G1 writes; G2 waits to write, then G5 and G6 wait to read
//  2. G1 leaves: G2 is rejected, and so is G1, which retries; the readers enter
//  3. G7 requests the read lock after the reservation took effect: it waits
//  4. the readers leave: G2 is next, and then G7 before G1
func TestReservation(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		since := func(d time.Duration) func(*luascripts.Request) {
			return func(q *luascripts.Request) { q.Waited, q.WaiterTimeout = d, waiterTimeout }
		}
		for {
			l.clear()
			l.asksToWrite("G1") // 1
			l.expect("a writer", l.asksToWrite("G2", since(4*time.Minute)).Verdict, luascripts.Held)
			l.expect("a reader", l.asksToRead("G5", since(3*time.Minute)).Verdict, luascripts.Held)
			l.expect("a reader", l.asksToRead("G6", since(2*time.Minute)).Verdict, luascripts.Held)

			began := time.Now()
			l.stopsWriting("G1", luascripts.Done) // 2
			again := l.asksToWrite("G1").Verdict
			first := l.asksToRead("G5", since(3*time.Minute)).Verdict
			second := l.asksToRead("G6", since(2*time.Minute)).Verdict
			if time.Since(began) >= turnTime-2*time.Millisecond {
				continue // the reservation may have expired, see TestReservation_ofTheDead
			}
			l.expect("a writer that comes back", again, luascripts.Held)
			l.expect("a reader", first, luascripts.Done)
			l.expect("another reader", second, luascripts.Done)
			break
		}

		l.turn("- - 1m", waiterTimeout)                                               // it took effect a while ago
		l.expect("a newcomer", l.asksToRead("G7", since(0)).Verdict, luascripts.Held) // 3
		l.expect("the writer", l.asksToWrite("G2", since(4*time.Minute)).Verdict, luascripts.Held)

		l.stopsReading("G5", luascripts.Done) // 4
		l.stopsReading("G6", luascripts.Done)
		l.expect("a newcomer", l.asksToRead("G7", since(0)).Verdict, luascripts.Held)
		l.expect("the writer", l.asksToWrite("G2", since(4*time.Minute)).Verdict, luascripts.Done)
		l.expect("the newcomer", l.asksToRead("G7", since(0)).Verdict, luascripts.Held)
		l.stopsWriting("G2", luascripts.Done)
		l.stopsReading("G7", luascripts.Gone) // it stops waiting
		l.expect("a writer", l.asksToWrite("G1").Verdict, luascripts.Done)
		l.stopsWriting("G1", luascripts.Done)
		if all := contents(t, l.rdb); all != "" {
			t.Errorf("left behind:\n%s", all)
		}
	})
}

// A reader dies while it waits. Its reservation keeps writers out once, for a moment.
func TestReservation_ofTheDead(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	for name, ends := range map[string]func(l rw){
		"the writer leaves":            func(l rw) { l.stopsWriting("G1", luascripts.Done) },
		"the lease of the writer ends": func(l rw) { do(l.t, l.rdb, "DEL", l.keys.Lock) },
	} {
		t.Run(name, func(t *testing.T) {
			l := rw{t, rdb, rwKeys}
			l.clear()
			l.asksToWrite("G1")
			l.expect("a reader", l.asksToRead("G5", func(q *luascripts.Request) { q.WaiterTimeout = time.Hour }).Verdict, luascripts.Held)
			ends(l)
			for began := time.Now(); l.asksToWrite("G1").Verdict != luascripts.Done; {
				if time.Since(began) > slow {
					t.Fatalf("a writer is refused for %v", time.Since(began))
				}
			}
			l.stopsWriting("G1", luascripts.Done)
			l.expect("a writer", l.asksToWrite("G1").Verdict, luascripts.Done)
		})
	}
}

// A writer dies, and its lease expires. A waiting reader lets one writer pass, but not several, one
// after the other, as they die. proof/model/rw.pml found this case: three writers passed one
// reader.
func TestReservation_writersThatDie(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		since := func(d time.Duration) func(*luascripts.Request) {
			return func(q *luascripts.Request) { q.Waited, q.WaiterTimeout = d, waiterTimeout }
		}
		for _, c := range []struct{ name, before string }{
			{"a writer is inside", "write G1:write=1"},
			{"a reader is inside, and a writer waits", "read G8=1(1)"},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				for {
					l.clear()
					l.held(c.before, long)
					if strings.HasPrefix(c.before, "read") {
						l.expect("the writer", l.asksToWrite("G1", since(10*time.Minute)).Verdict, luascripts.Held)
					}
					l.expect("a reader", l.asksToRead("G5", since(5*time.Minute)).Verdict, luascripts.Held)
					if strings.HasPrefix(c.before, "read") {
						l.stopsReading("G8", luascripts.Done)
						l.expect("the writer", l.asksToWrite("G1", since(10*time.Minute)).Verdict, luascripts.Done)
					}

					do(t, l.rdb, "DEL", l.keys.Lock) // the lease of G1 expires
					began := time.Now()
					second := l.asksToWrite("G2", since(4*time.Minute)).Verdict
					third := l.asksToWrite("G3", since(3*time.Minute)).Verdict
					reader := l.asksToRead("G5", since(5*time.Minute)).Verdict
					if time.Since(began) >= turnTime-2*time.Millisecond {
						continue // the reservation may have expired
					}
					l.expect("the second writer", second, luascripts.Held)
					l.expect("the third writer", third, luascripts.Held)
					l.expect("the reader", reader, luascripts.Done)
					break
				}
				l.stopsReading("G5", luascripts.Done)
				l.expect("the second writer", l.asksToWrite("G2", since(4*time.Minute)).Verdict, luascripts.Done)
				l.stopsWriting("G2", luascripts.Done)
				l.stopsWriting("G3", luascripts.Gone)
			})
		}
	})
}

// A damaged reservation keeps no writer waiting, and the next reader replaces it.
func TestReservation_foreign(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for name, make := range map[string][][]string{
			"garbage":        {{"SET", l.keys.Reservation, "what is this", "PX", "60000"}},
			"empty":          {{"SET", l.keys.Reservation, "", "PX", "60000"}},
			"no times":       {{"SET", l.keys.Reservation, owner("G5"), "PX", "60000"}},
			"negative times": {{"SET", l.keys.Reservation, owner("G5") + " -2 -1", "PX", "60000"}},
			"without an end": {{"SET", l.keys.Reservation, owner("G5") + " 1 2"}},
			"list":           {{"RPUSH", l.keys.Reservation, owner("G5") + " 1 2"}, {"PEXPIRE", l.keys.Reservation, "60000"}},
		} {
			t.Run(name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				for _, args := range make {
					do(t, l.rdb, args...)
				}
				l.expect("a writer", l.asksToWrite("G1").Verdict, luascripts.Done)
				l.stopsReading("G4", luascripts.Gone)
				l.expect("a reader", l.asksToRead("G2", func(q *luascripts.Request) { q.WaiterTimeout = waiterTimeout }).Verdict, luascripts.Held)
				if got := l.turned(); got != "G2 0m out" {
					t.Errorf("the turn is %q, want that of G2", got)
				}
				about(t, "the turn", pttl(t, l.rdb, l.keys.Reservation), waiterTimeout)
				l.stopsReading("G2", luascripts.Gone)
				l.stopsWriting("G1", luascripts.Done)
				if all := contents(t, l.rdb); all != "" {
					t.Errorf("left behind:\n%s", all)
				}
			})
		}
	})
}
