//go:build linux

package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Readers that wait behind a writer enter together when it leaves, rather than one after the other, or at their next
// poll.
//
//	1 this process writes; five readers in each of four workers wait for it
//	2 it unlocks, or it reads too and stops only writing
//	3 all readers are in, before any of them leaves: within a few milliseconds
//	rather than a poll interval
//
// A missed message fails the test, because it costs a poll interval. On a busy machine that can happen once, but not
// repeatedly. Rounds in which a PING was also slow do not count.
func TestReaders(t *testing.T) {
	t.Run("an unlock", func(t *testing.T) { testReaders(t, false) })
	t.Run("a downgrade", func(t *testing.T) { testReaders(t, true) })
}

func testReaders(t *testing.T, downgrade bool) {
	const (
		processes = 4
		each      = 5
		missed    = poll * 7 / 10
		name      = "rw"
	)
	rounds := amount(50)
	server := redistest.Start(t)
	stalls := watchStalls(t, []*redistest.Server{server})
	rdb := server.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	l := c.NewRWLock(name)
	workers := make([]*worker, processes)
	for i := range workers {
		workers[i] = startWorker(t)
		workers[i].do(t, request{Do: "open", Addr: server.Addr()})
	}

	var all, last []time.Duration
	var slow []span
	for round := range rounds {
		ctx := lock.ContextWithNewOwner(t.Context())
		h, err := l.Write().Lock(ctx) // 1
		if err != nil {
			t.Fatal(err)
		}
		var answers []<-chan reply
		for _, w := range workers {
			answers = append(answers, w.send(t, request{Do: "crowd", Kind: read, Name: name, Crowd: &crowd{N: each, Meet: int64((round + 1) * processes * each)}}))
		}
		for _, w := range workers {
			until(t, func() bool { return value[int](t, w.do(t, request{Do: "begun"})) == (round+1)*each })
		}
		subscribers(t, rdb, read.channel(name), processes)
		holds := []lock.Hold{h}
		if downgrade {
			r, err := l.Read().Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, r)
		}

		start, from := monotonic(), time.Now()
		if err := h.Unlock(t.Context()); err != nil { // 2
			t.Error(err)
		}
		var took []time.Duration
		for _, answer := range answers { // 3
			for _, o := range value[[]op](t, must(t, receive(t, answer))) {
				if !o.OK || o.Err != "" || o.Return < start {
					t.Errorf("a waiting reader: %+v, with the unlock at %d", o, start)
				}
				took = append(took, time.Duration(o.Return-start))
			}
		}
		for _, h := range holds[1:] {
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		all, last = append(all, took...), append(last, slices.Max(took))
		if most := slices.Max(took); most > missed {
			slow = append(slow, span{from: from, to: from.Add(most)})
		}
	}
	if slow := len(stalls.unexplained(slow)); slow > 2+rounds/20 {
		t.Errorf("in %d of %d rounds, the last reader was in more than %v after the writer had left: messages are missed", slow, rounds, missed)
	}
	for _, w := range workers {
		w.do(t, request{Do: "close"})
	}
	if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	server.Do(t, "DEL", meetKey)
	noKeys(t, server)
	slices.Sort(last)
	t.Logf("%d rounds of %d readers: a reader was in %v after the writer had left in the middle, the last one %v, in nine of ten rounds at most %v, and always at most %v",
		rounds, processes*each, median(all), median(last), last[len(last)*9/10], last[len(last)-1])
}
