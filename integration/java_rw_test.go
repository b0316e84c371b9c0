//go:build linux

package integration_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Readers and writers of both sides share one hash and the keys of the read leases.

const javaRW = "rw"

// goHolds checks our hold: its mode, and its count.
func (s *javaScene) goHolds(h lock.Hold, mode lock.Mode, count int) {
	s.Helper()
	state, err := s.c.NewRWLock(javaRW).Inspect(s.Context())
	if err != nil || state.Mode != mode || state.HoldCount(h.Owner()) != count {
		s.Errorf("Go should hold it %d times, and as a whole it is %q; it is %+v (%v)", count, mode, state, err)
	}
	if err := h.Err(); err != nil {
		s.Errorf("Go's hold ended: %v", err)
	}
}

// Readers of both sides read concurrently, in whatever order they come and go, and the last of them to leave admits the
// writers. None of them deletes the hash while another reads.
//
//	1 readers come, one of each side, and the first again
//	2 they leave one by one, and the others still read; until the last has left, no
//	writer enters
//	3 after the last one a waiting writer of the other side enters immediately
func TestJavaRW_readersShare(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
			java := []*javaLock{s.java.lock("one", read, javaRW), s.java.lock("two", read, javaRW)} // 1
			ctx := lock.ContextWithNewOwner(t.Context())
			java[0].get(t)
			one, err := s.c.NewRWLock(javaRW).Read().Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			java[1].get(t)
			java[1].get(t)
			two, err := s.c.NewRWLock(javaRW).Read().Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			leave := []func(){
				func() { java[0].unlock(t) },
				func() { java[1].unlock(t); java[1].unlock(t) },
				func() { s.unlock(one) },
				func() { s.unlock(two) },
			}
			reads := []int{1, 2, 1, 1}     // the number of holds of each
			for i, leaves := range order { // 2
				s.goMay(write, javaRW, false)
				s.javaMay(write, javaRW, false)
				var got <-chan waiter
				var answer <-chan reply
				writer := s.java.lock("writer", write, javaRW)
				switch last := i == len(order)-1; {
				case last && leaves < 2:
					got = s.wait(write, javaRW)
				case last:
					answer = writer.parks(t)
				}
				leave[leaves]()
				reads[leaves] = 0
				for n, h := range []lock.Hold{one, two} {
					if reads[2+n] > 0 {
						s.goHolds(h, lock.Read, reads[2]+reads[3]) // both holds have the same owner
					}
				}
				for n, l := range java {
					if holds := l.holds(t); holds != reads[n] {
						t.Errorf("Java's reader %d holds it %d times, want %d", n+1, holds, reads[n])
					}
				}
				if got != nil { // 3
					s.unlock(s.granted(got).hold)
				}
				if answer != nil {
					must(t, receiveWithin(t, answer, javaLease/4))
					writer.unlock(t)
				}
			}
			s.empty()
		}
	})
}

// A reader of ours has one key for the leases of all its holds, and a reader of Redisson's has one key for each. Each
// side finds the other's leases, however many holds there are.
//
//	1 ours acquires many read holds; a reader of Java comes, re-enters and leaves: ours still reads, and no writer enters
//	2 ours releases all holds but one, and a reader of Java comes and leaves in between
//	3 ours leaves completely, and Java, which reads three times, does not lose the lock
//	4 the last one to leave, which is Java or ours, admits a waiting writer of the other side
func TestJavaRW_manyHolds(t *testing.T) {
	t.Parallel()
	const holds = 300
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		reader := s.java.lock("reader", read, javaRW)
		ctx := lock.ContextWithNewOwner(t.Context())
		enter := func() (all []lock.Hold) {
			t.Helper()
			for range holds {
				h, err := s.c.NewRWLock(javaRW).Read().Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, h)
			}
			return all
		}
		visit := func(h lock.Hold, count int) {
			t.Helper()
			reader.get(t)
			reader.get(t)
			reader.unlock(t)
			reader.unlock(t)
			s.goHolds(h, lock.Read, count)
			s.goMay(write, javaRW, false)
			s.javaMay(write, javaRW, false)
		}
		all := enter() // 1
		visit(all[0], holds)
		for i, h := range all[:holds-1] { // 2
			s.unlock(h)
			if left := holds - 1 - i; left == holds-1 || left == 256 || left == 2 || left == 1 {
				visit(all[holds-1], left)
			}
		}
		for range 3 { // 3
			reader.get(t)
		}
		s.unlock(all[holds-1])
		s.goMay(write, javaRW, false)
		s.javaMay(write, javaRW, false)
		if n := reader.holds(t); n != 3 {
			t.Errorf("Java's reader holds it %d times", n)
		}
		got := s.wait(write, javaRW) // 4
		for range 3 {
			reader.unlock(t)
		}
		s.unlock(s.granted(got).hold)
		s.empty()

		all = enter()
		writer := s.java.lock("writer", write, javaRW)
		answer := writer.parks(t)
		for _, h := range all {
			s.unlock(h)
		}
		must(t, receiveWithin(t, answer, javaLease/4))
		writer.unlock(t)
		s.empty()
	})
}

// A writer of ours that also reads stops writing: waiting readers of Java enter immediately, and writers do not.
func TestJavaRW_weDowngrade(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		ctx := lock.ContextWithNewOwner(t.Context())
		l := s.c.NewRWLock(javaRW)
		w, err := l.Write().Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.Read().Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var answers []<-chan reply
		for _, thread := range []string{"one", "two", "three"} {
			reader := s.java.lock(thread, read, javaRW)
			answers = append(answers, reader.parks(t))
		}
		s.unlock(w)
		for _, answer := range answers {
			must(t, receiveWithin(t, answer, javaLease/4))
		}
		s.goHolds(r, lock.Read, 1)
		s.javaMay(write, javaRW, false)
		s.goMay(write, javaRW, false)
		for _, thread := range []string{"one", "two", "three"} {
			s.java.lock(thread, read, javaRW).unlock(t)
		}
		s.goHolds(r, lock.Read, 1)
		s.unlock(r)
		s.empty()
	})
}

// A writer of Java that also reads stops writing. Java does not publish that, but our readers still enter within a poll
// interval; our writers enter immediately after the read hold is released.
func TestJavaRW_javaDowngrades(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		w, r := s.java.lock("thread", write, javaRW), s.java.lock("thread", read, javaRW)
		w.get(t)
		r.get(t)
		if s.java.lock("other", read, javaRW).try(t) {
			t.Error("another thread reads while one writes")
		}
		reader := s.wait(read, javaRW)
		w.unlock(t)
		g := s.granted(reader)
		if n := r.holds(t); n != 1 {
			t.Errorf("Java reads %d times", n)
		}
		s.goHolds(g.hold, lock.Read, 1)
		s.javaMay(write, javaRW, false)
		writer := s.wait(write, javaRW)
		s.unlock(g.hold)
		r.unlock(t)
		s.unlock(s.granted(writer).hold)
		s.empty()
	})
}

// A waiting writer of ours blocks new readers of ours. Java's readers ignore it, and it does not disturb their hold
// counts.
//
//	1 Java reads, and a writer of ours waits
//	2 a reader of ours does not enter; another thread of Java does
//	3 both threads of Java leave: the writer enters
//	4 in the other direction it waits for Java's writer, and so do all others
func TestJavaRW_ourWritersWish(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	one, two := s.java.lock("one", read, javaRW), s.java.lock("two", read, javaRW)
	one.get(t) // 1
	got := s.wait(write, javaRW)
	until(t, func() bool {
		state, err := s.c.NewRWLock(javaRW).Inspect(t.Context())
		return err == nil && len(state.Waiters) == 1
	})
	s.goMay(read, javaRW, false) // 2
	if !two.try(t) {
		t.Error("a second reader of Java does not enter: our writer intent blocks it")
	}
	one.unlock(t) // 3
	if n := two.holds(t); n != 1 {
		t.Errorf("Java's second reader holds it %d times", n)
	}
	two.unlock(t)
	s.unlock(s.granted(got).hold)
	s.empty()

	w := s.java.lock("one", write, javaRW) // 4
	w.get(t)
	got = s.wait(write, javaRW)
	s.goMay(read, javaRW, false)
	s.javaMay(read, javaRW, false)
	s.javaMay(write, javaRW, false)
	w.unlock(t)
	s.unlock(s.granted(got).hold)
	s.empty()
}

// A dead reader does not block writers for longer than its own lease, even if other readers keep the hash alive.
//
//	1 the doomed process reads, and one of each side
//	2 it is killed, and its lease expires; the others are renewed
//	3 they leave: a writer of each side enters immediately
func TestJavaRW_deadReader(t *testing.T) {
	t.Parallel()
	const dog = 2 * time.Second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		for _, test := range []struct {
			name   string
			doomed func(t *testing.T, s *javaScene) (owner string, kill func())
		}{
			{"of Java", func(t *testing.T, s *javaScene) (string, func()) {
				c := startJava(t).open(t, s.options(javaOptions{Watchdog: dog.Milliseconds()}))
				return c.lock("doomed", read, javaRW).get(t), c.java.kill
			}},
			{"of Go", func(t *testing.T, s *javaScene) (string, func()) {
				w := startWorker(t)
				w.do(t, request{Do: "open", Addr: s.addr(), Dog: dog})
				return value[granted](t, w.do(t, request{Do: "lock", Kind: read, Name: javaRW, Wait: promptTimeout})).Op.Owner, w.kill
			}},
		} {
			for _, lastIsJava := range []bool{false, true} {
				name := test.name + map[bool]string{false: ", Go leaves last", true: ", Java leaves last"}[lastIsJava]
				t.Run(name, func(t *testing.T) {
					s := newJavaScene(t, at)
					dead, kill := test.doomed(t, s) // 1
					h, r := s.get(read, javaRW), s.java.lock("reader", read, javaRW)
					r.get(t)
					kill() // 2
					until(t, func() bool {
						n, err := do(t, s.rdb, "EXISTS", read.lease(javaRW, dead)).AsInt64()
						return err == nil && n == 0
					})
					s.goMay(write, javaRW, false)
					s.javaMay(write, javaRW, false)
					if lastIsJava { // 3
						s.unlock(h)
						s.javaMay(write, javaRW, false)
						s.goMay(write, javaRW, false)
						got := s.wait(write, javaRW)
						r.unlock(t)
						s.unlock(s.granted(got).hold)
					} else {
						r.unlock(t)
						s.goHolds(h, lock.Read, 1)
						s.javaMay(write, javaRW, false)
						s.goMay(write, javaRW, false)
						writer := s.java.lock("writer", write, javaRW)
						answer := writer.parks(t)
						s.unlock(h)
						must(t, receiveWithin(t, answer, javaLease/4))
						writer.unlock(t)
					}
					s.javaMay(write, javaRW, true)
					s.goMay(write, javaRW, true)
					s.empty()
				})
			}
		}
	})
}

// The hash may outlive the last living reader: when a writer of Java downgrades, it leaves the hash with the write
// lease. Our writers check the readers' leases.
//
//	1 a thread of Java writes, for a minute, and reads, for two seconds
//	2 it stops writing, and never stops reading
//	3 a writer of ours enters after the two seconds
func TestJavaRW_leaseOfTheReadingCounts(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	s := newJavaScene(t, oneServer(t))
	w, r := s.java.lock("thread", write, javaRW), s.java.lock("thread", read, javaRW)
	w.get(t) // 1
	key := read.lease(javaRW, r.get(t, leased(lease)))
	w.unlock(t) // 2
	got := s.wait(write, javaRW)
	g := s.granted(got) // 3
	if n, err := do(t, s.rdb, "EXISTS", key).AsInt64(); err != nil || n != 0 {
		t.Errorf("the writer entered, and the reader's lease has not expired (%v)", err)
	}
	s.unlock(g.hold)
	s.empty()
}
