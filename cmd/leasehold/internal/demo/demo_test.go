package demo

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/leasehold-go/leasehold/bloom"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
)

func TestMain(m *testing.M) {
	slowDemo()
	redistest.VerifyTestMain(m)
}

// slowDemo makes the times of the demo longer, because on a busy machine a command can take as long as one of its leases.
func slowDemo() {
	for _, d := range []*time.Duration{
		&shortLease, &jobTime, &toldWithin, &deadWithin, &serviceTime, &patience, &stuckLease, &quorumLease, &voteTimeout, &ballotLimit, &pageTime, &joinTime, &tieTime, &librarianWaits, &sceneLimit, &tidyLimit, &attack,
	} {
		*d *= 4
	}
}

// The whole demo, as `leasehold demo | cat` shows it.
func TestDemo(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if err := Play(t.Context(), &stdout, &stderr, Options{}); err != nil {
		t.Fatalf("%v\n%s", err, &stdout)
	}
	for _, want := range []string{
		"Redis: in memory",
		"1. A flash sale",
		"✓ without a lock, the shops oversold: ",
		"✓ with a lock: 10 phones sold of 10",
		"✓ 10 distinct phones to 10 distinct buyers",
		"2. Unique IDs",
		"✓ 100 of 100 IDs taken",
		"✓ 0 duplicates",
		"✓ 0 gaps from 1 to 100",
		"3. A job that outlives its lease",
		"✓ the watchdog renewed the lease ",
		"acquired the lock 0 times",
		"✓ the job held its lock for all ",
		"4. A call within a call",
		"✓ hold count in Redis after Lock, Lock, Unlock, Unlock: [1 2 1 0]",
		"5. A stolen lock",
		"✓ the job's context was canceled: ",
		"6. A fair queue",
		"all queued     queue: A ",
		"✓ queued in Redis in the order of arrival: ABCDEFGH",
		"✓ served in that order, one at a time: ABDEGH",
		"✓ F left the queue ",
		"✓ C died, and its queue entry stayed in Redis",
		"✓ D, behind C, was served ",
		"✓ no other customer was delayed",
		"✓ heartbeats kept the queue position of H for ",
		"✓ 0 waiters left in the queue",
		"7. A library",
		"edition 3: the librarian waited ",
		"✓ 0 readers read during a write",
		"✓ 0 readers saw pages of different editions",
		"✓ the librarian acquired the write lock 3 of 3 times, each time within ",
		"and 0 of them read before it",
		"✓ after each downgrade, at least ",
		"8. A quorum",
		"✓ A acquired the lock on 5 of 5 servers",
		"✓ two failed, and A held it with 3 votes for at least ",
		"✓ A's Unlock did not need the failed servers\n",
		"✓ B then acquired it on the 3 remaining servers",
		"✓ a third failed, and B lost its hold: ",
		"✓ two are no majority: A tried ",
		"and acquired it 0 times: leasehold: trylock \"leader\": no usable reply from Redis: ",
		"9. A stale holder",
		"✓ without a fencing check, A overwrote the write of B: of 180 euros, 130 are left",
		"✓ with a fencing check, the stale write of A was rejected: ",
		"✓ that account has 150 euros, as B wrote",
		"✓ A started over with a new token, and the account has 180 euros",
		"10. A few GPUs",
		"✓ all 12 trainings ran, and at most ",
		"✓ the training that needs all GPUs was not starved: 0 later ones ",
		"✓ a process died with all GPUs: they were free ",
		"✓ a client with a different permit count fails: leasehold: trylock \"gpus\": ",
		"✓ 3 of 3 GPUs are free at the end",
		"11. A burst at the window boundary",
		"fixed window                admits at most 200 in a second",
		"sliding log                 admits at most 100 in a second",
		"sliding counter             admits at most 199 in a second",
		"token bucket                admits at most 199 in a second",
		"✓ a fixed window, a sliding counter and a token bucket of 100 admit up to twice as many: ",
		"✓ a sliding log and a leaky bucket keep the limit: 100 and ",
		"✓ a sliding log that counts rejected calls: ",
		"✓ a token bucket that loses its fill time: ",
		"✓ INCR, then EXPIRE only for a new key: ",
		"✓ leasehold's rate limiter with half the rate and a burst of half: limit 100 per second by the clock of Redis",
		"✓ leasehold's Redisson-compatible rate limiter: limit 100 per second",
		"12. A web crawl",
		", and 0 false negatives, whichever crawler added them",
		"✓ of 6000 pages that were not added, ",
		"✓ a crawler with different parameters fails: ",
		"✓ a crawler whose filter was deleted fails: ",
		"13. A team",
		"✓ 24 reports of 8 parts counted 8 times",
		"✓ a latch without a count is not a released one: leasehold: wait \"never made\": ",
		"✓ the wait group reported the dead worker ",
		"✓ the job completes after another worker has done the part",
		"14. An election",
		"✓ the leader detected the loss ",
		"✓ a third process observed the leaders: ",
		"✓ 0 keys left in Redis",
		"✓ all ",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("it does not say %q", want)
		}
	}
	for _, odd := range []string{"✗", "\x1b", "\r"} {
		if strings.Contains(stdout.String(), odd) {
			t.Errorf("there is a %q in what is no terminal", odd)
		}
	}
	if t.Failed() {
		t.Logf("the demo:\n%s", &stdout)
	}
}

// On a server of the user, the demo leaves the existing keys, and no others.
func TestDemo_url(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.Set("leasehold:demo:other", "not ours")

	var stdout, stderr bytes.Buffer
	if err := Play(t.Context(), &stdout, &stderr, Options{URL: urlOf(server), Server: "redis://db"}); err != nil {
		t.Errorf("%v\n%s", err, &stdout)
	}
	if !strings.Contains(stdout.String(), "Redis: the server at redis://db\n") {
		t.Errorf("it does not say which server it used:\n%s", &stdout)
	}
	if keys := server.Keys(); !slices.Equal(keys, []string{"leasehold:demo:other"}) {
		t.Errorf("keys on the server afterwards: %q, want what was there before", keys)
	}
}

// 1: Ctrl-C while the job of scene 3 runs. 2: The demo ends, and removes its keys.
func TestDemo_interrupted(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	ctx, interrupt := context.WithCancel(t.Context())
	stdout := &trigger{on: "A job of " + jobTime.String(), call: interrupt} // 1
	var stderr bytes.Buffer
	if err := Play(ctx, stdout, &stderr, Options{URL: urlOf(server)}); !errors.Is(err, context.Canceled) { // 2
		t.Errorf("the demo ended with %v, want %v", err, context.Canceled)
	}
	if strings.Contains(stdout.String(), "4. ") {
		t.Errorf("it went on to the next scene:\n%s", stdout)
	}
	if keys := server.Keys(); len(keys) > 0 {
		t.Errorf("keys on the server afterwards: %q, want none", keys)
	}
}

// 1: Ctrl-C when C has just died in the queue, and its entry is still there. 2: The
// demo ends when that entry is gone.
func TestDemo_interruptedInTheQueue(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	ctx, interrupt := context.WithCancel(t.Context())
	stdout := &trigger{on: "C died", call: interrupt} // 1
	err := play(ctx, newScreen(stdout), Options{URL: urlOf(server)}, []scene{{"queue", "A queue", fairQueue}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the demo ended with %v, want %v", err, context.Canceled)
	}
	if keys := server.Keys(); len(keys) > 0 { // 2
		t.Errorf("keys on the server afterwards: %q, want none", keys)
	}
	if t.Failed() {
		t.Logf("the demo:\n%s", stdout)
	}
}

// 1: Ctrl-C when two servers of a held lock have just failed. 2: The demo ends, and
// no goroutines of the servers are left.
func TestDemo_interruptedInTheQuorum(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	stdout := &trigger{on: "two of them fail", call: interrupt} // 1
	err := play(ctx, newScreen(stdout), Options{}, []scene{{"quorum", "A quorum", quorum}})
	if !errors.Is(err, context.Canceled) { // 2: and goleak
		t.Errorf("the demo ended with %v, want %v:\n%s", err, context.Canceled, stdout)
	}
}

// A claim that is not true makes the demo fail, and is shown again at the end.
func TestDemo_falseClaim(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	err := play(t.Context(), newScreen(&stdout), Options{}, []scene{{"", "Wishes", func(_ context.Context, s *stage) error {
		s.check(claimf(true, "water is wet"), claimf(false, "pigs can fly"))
		return nil
	}}})
	if err == nil || err.Error() != "1 of 3 checks failed" {
		t.Errorf("the demo ended with %v, want 1 of 3 claims not true", err)
	}
	if n := strings.Count(stdout.String(), "✗ pigs can fly"); n != 2 {
		t.Errorf("the claim is shown %d times, want at its scene and in the summary:\n%s", n, &stdout)
	}
}

// A scene that fails ends the demo, which removes its locks.
func TestDemo_sceneFails(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	failure := errors.New("the stage burns")
	var stdout bytes.Buffer
	err := play(t.Context(), newScreen(&stdout), Options{URL: urlOf(server)}, []scene{
		{"", "Fire", func(ctx context.Context, s *stage) error {
			c, err := s.open(ctx)
			if err != nil {
				return err
			}
			if _, err := c.NewLock("exit").Lock(ctx); err != nil {
				return err
			}
			return failure
		}},
		{"", "Never", func(_ context.Context, s *stage) error { // it plays at the same time
			s.out.line("the show goes on")
			return nil
		}},
	})
	if !errors.Is(err, failure) {
		t.Errorf("the demo ended with %v, want %v", err, failure)
	}
	if strings.Contains(stdout.String(), "Never") || strings.Contains(stdout.String(), "the show goes on") {
		t.Errorf("the demo went on to the next scene:\n%s", &stdout)
	}
	if keys := server.Keys(); len(keys) > 0 {
		t.Errorf("keys on the server afterwards: %q, want none", keys)
	}
}

// Scenes play at the same time, and are shown completely and one by one.
func TestDemo_atOnce(t *testing.T) {
	t.Parallel()
	second := make(chan struct{})
	var stdout bytes.Buffer
	err := play(t.Context(), newScreen(&stdout), Options{}, []scene{
		{"", "First", func(ctx context.Context, s *stage) error {
			s.out.line("one")
			select {
			case <-second:
			case <-ctx.Done():
			}
			s.check(claimf(true, "two"))
			return context.Cause(ctx)
		}},
		{"", "Second", func(_ context.Context, s *stage) error {
			s.check(claimf(true, "three"))
			close(second)
			return nil
		}},
	})
	if want := "\n1. First\n  one\n  ✓ two\n\n2. Second\n  ✓ three\n"; err != nil || !strings.Contains(stdout.String(), want) {
		t.Errorf("%v, want %q:\n%s", err, want, &stdout)
	}
	if !strings.Contains(stdout.String(), "✓ all 3 checks passed") { // with the check that no keys are left
		t.Errorf("a check is not in the summary:\n%s", &stdout)
	}
}

// --only plays the scenes that it names, in the order of the demo.
func TestDemo_only(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if err := Play(t.Context(), &stdout, &stderr, Options{Only: []string{"nested", "ids"}}); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"\n1. " + scenes[1].title + "\n", "\n2. " + scenes[3].title + "\n"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &stdout)
		}
	}
	if strings.Contains(stdout.String(), "3. ") {
		t.Errorf("it plays another scene:\n%s", &stdout)
	}
}

// A key that the locks leave behind is found, even if it has text before the demo's prefix.
func TestDemo_keyLeft(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	for _, format := range []func(prefix string) string{
		func(prefix string) string { return prefix + "lock" },
		func(prefix string) string { return "redisson_lock_token:{" + prefix + "lock}" },
		func(prefix string) string { return "leasehold_fence:{" + prefix + "lock}" },
	} {
		var key string
		var stdout bytes.Buffer
		err := play(t.Context(), newScreen(&stdout), Options{URL: urlOf(server)}, []scene{{"", "Litter", func(_ context.Context, s *stage) error {
			key = format(s.prefix)
			return server.Set(key, "1")
		}}})
		if err == nil || !strings.Contains(stdout.String(), key) {
			t.Errorf("%s was left, and the demo ended with %v:\n%s", key, err, &stdout)
		}
	}
}

// The check of the flash sale that passes with the lock fails without it.
func TestFlashSale_unlockedFailsTheCheck(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	books, err := sell(t.Context(), s, "shelf", func(ctx context.Context, buyer int) error {
		return buy(ctx, s, "shelf", buyer)
	})
	if err != nil {
		t.Fatal(err)
	}
	if claims := checkLockedSale(books); allTrue(claims) {
		t.Errorf("an unlocked sale passes the check of the locked one: %v", claims)
	}
}

// Readers that acquire a different lock, or a lock with reader preference, fail the check of
// the library.
func TestLibrary_wrongLocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		lockOf func(*client.Client) lock.Locker
		untrue string // a claim that must be untrue
	}{
		{"another lock", func(c *client.Client) lock.Locker { return c.NewRWLock("elsewhere").Read() }, "read during a write"},
		{"readers first", func(c *client.Client) lock.Locker {
			return c.NewRWLock("catalog", lock.WithReaderPreference()).Read()
		}, "of them read before it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := onStage(t)
			c, err := s.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			report, err := visitLibrary(t.Context(), s, func(int) lock.Locker { return test.lockOf(c) })
			if err != nil {
				t.Fatal(err)
			}
			untrue(t, checkLibrary(report), test.untrue)
		})
	}
}

// A rival that acquires a different lock while the first is held fails the check of the
// quorum.
func TestQuorum_anotherLock(t *testing.T) {
	t.Parallel()
	report, err := playQuorum(t.Context(), onStage(t), "leader", "chief")
	if err != nil {
		t.Fatal(err)
	}
	untrue(t, checkQuorum(report), "in the meantime, and acquired it")
}

// A rival that is stopped while it holds the lock releases it completely. 1: It is stopped during Unlock.
func TestKeepTrying_stoppedInUnlock(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	tries, granted, err := keepTrying(ctx, &grantedLock{unlocking: stop}, func(int) {}) // 1
	if tries != 1 || granted != 1 || err != nil {
		t.Errorf("%d attempts, %d granted, and %v", tries, granted, err)
	}
}

// grantedLock grants every attempt. Its Unlock calls unlocking, and fails if ctx is then canceled, like a wait for a reply.
type grantedLock struct {
	lock.Locker
	lock.Hold
	unlocking func()
}

func (l *grantedLock) TryLock(context.Context) (lock.Hold, error) { return l, nil }

func (l *grantedLock) Unlock(ctx context.Context) error {
	l.unlocking()
	return ctx.Err()
}

// A write without a fencing check fails the check of the stale holder.
func TestStaleHolder_noGuard(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	report, err := playStale(t.Context(), s, func(ctx context.Context, _ uint64, name string, n int) error {
		return s.data.setNumber(ctx, name, n)
	})
	if err != nil {
		t.Fatal(err)
	}
	claims := checkStale(report)
	untrue(t, claims, "with a fencing check, the stale write")
	untrue(t, claims, "as B wrote")
	untrue(t, claims, "A started over")
}

// Each check passes a correct report, and fails a report with one error.
func TestChecks(t *testing.T) {
	t.Parallel()
	var books []sale
	for i := range phones {
		books = append(books, sale{phone: i + 1, buyer: 50 - i})
	}
	soldTwice := slices.Clone(books)
	soldTwice[4].phone = 4
	servedTwice := slices.Clone(books)
	servedTwice[4].buyer = servedTwice[3].buyer
	swapped := slices.Clone(books)
	swapped[2], swapped[3] = swapped[3], swapped[2]
	oversold := append(slices.Clone(books), sale{phone: 10, buyer: 99})

	job := jobReport{took: jobTime, renewals: 8, tries: 29}
	jobWith := func(edit func(*jobReport)) []claim {
		r := job
		edit(&r)
		return checkJob(r)
	}
	nested := nestedReport{counts: []int{1, 2, 1, 0}, stranger: lock.ErrNotAcquired, tokens: [2]uint64{7, 7}}
	nestedWith := func(edit func(*nestedReport)) []claim {
		r := nested
		edit(&r)
		return checkNested(r)
	}
	theft := theftReport{
		told: toldWithin, cause: lock.ErrLost, unlock: errors.Join(lock.ErrNotHeld, lock.ErrLost),
		thiefHolds: 1, tokens: [2]uint64{7, 8},
	}
	theftWith := func(edit func(*theftReport)) []claim {
		r := theft
		edit(&r)
		return checkTheft(r)
	}

	line := queueReport{
		line: customers, leftAfter: patience - 1, deadStays: true, served: living,
		deadCost: 2*patience - 1, changes: patience - 1, lastWait: patience + 1,
	}
	lineWith := func(edit func(*queueReport)) []claim {
		r := line
		edit(&r)
		return checkQueue(r)
	}
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	visits := libraryReport{
		most: 2,
		readings: []reading{
			{asked: at(90), entered: at(91)},                                     // before the librarian
			{asked: at(95).Add(tieTime), entered: at(96).Add(tieTime)},           // too soon after it to count
			{asked: at(110).Add(tieTime), entered: at(400), pages: [2]int{1, 1}}, // behind it
		},
	}
	for edition := range editions {
		visits.revisions = append(visits.revisions, revision{waits: at(100 + 1000*edition), entered: at(300 + 1000*edition), joined: 2})
	}
	visitsWith := func(edit func(*libraryReport)) []claim {
		r := visits
		r.readings, r.revisions = slices.Clone(r.readings), slices.Clone(r.revisions)
		edit(&r)
		return checkLibrary(r)
	}

	votes := quorumReport{
		first: 5, votes: 3, until: quorumLease + 1, tries: [2]int{1, 2},
		then: 3, told: 2*quorumLease - 1, cause: lock.ErrLost, after: lock.ErrUnavailable,
	}
	votesWith := func(edit func(*quorumReport)) []claim {
		r := votes
		edit(&r)
		return checkQuorum(r)
	}
	stale := staleReport{
		after: lock.ErrLost, tokens: [2]uint64{7, 8}, bare: 130, guarded: 150,
		refusal: &fence.StaleError{Token: 7, Highest: 8}, again: 180,
	}
	staleWith := func(edit func(*staleReport)) []claim {
		r := stale
		edit(&r)
		return checkStale(r)
	}

	training := gpuReport{ran: trainings, most: gpus, died: shortLease, free: gpus, wrong: semaphore.ErrPermitCount}
	trainingWith := func(edit func(*gpuReport)) []claim {
		r := training
		edit(&r)
		return checkGPUs(r)
	}
	bursts := burstReport{
		most:     map[string]int{"fixed window": 200, "sliding log": 100, "sliding counter": 199, "token bucket": 199, "leaky bucket, as a queue": 100},
		hammered: map[string]int{"log": 100, "bucket": 2000, "incr": 200}, limiter: 100, window: 100, took: 200,
	}
	burstsWith := func(edit func(*burstReport)) []claim {
		r := bursts
		r.most, r.hammered = maps.Clone(r.most), maps.Clone(r.hammered)
		edit(&r)
		return checkBursts(r)
	}
	worked := teamReport{left: 1, absent: latch.ErrNotInitialized, lost: 1}
	workedWith := func(edit func(*teamReport)) []claim {
		r := worked
		edit(&r)
		return checkTeam(r)
	}
	elected := electionReport{told: shortLease, values: []string{"node 0", "node 1"}, second: "node 1"}
	electedWith := func(edit func(*electionReport)) []claim {
		r := elected
		edit(&r)
		return checkElections(r)
	}
	crawled := crawlReport{added: pages - 10, again: 10, falsely: 0.03, bits: 14596, other: bloom.ErrConfigMismatch, lost: bloom.ErrNotInitialized}
	crawledWith := func(edit func(*crawlReport)) []claim {
		r := crawled
		edit(&r)
		return checkCrawl(r)
	}

	for _, test := range []struct {
		name   string
		claims []claim
		want   bool
	}{
		{"GPUs", checkGPUs(training), true},
		{"GPUs: a training is missing", trainingWith(func(r *gpuReport) { r.ran-- }), false},
		{"GPUs: too many at once", trainingWith(func(r *gpuReport) { r.most++ }), false},
		{"GPUs: the big one was overtaken", trainingWith(func(r *gpuReport) { r.before++ }), false},
		{"GPUs: back too soon", trainingWith(func(r *gpuReport) { r.died = shortLease / 4 }), false},
		{"GPUs: back too late", trainingWith(func(r *gpuReport) { r.died = deadWithin }), false},
		{"GPUs: another number is taken", trainingWith(func(r *gpuReport) { r.wrong = nil }), false},
		{"GPUs: one is lost", trainingWith(func(r *gpuReport) { r.free-- }), false},

		{"bursts", checkBursts(bursts), true},
		{"bursts: a fixed window is right", burstsWith(func(r *burstReport) { r.most["fixed window"] = 100 }), false},
		{"bursts: a counter is right", burstsWith(func(r *burstReport) { r.most["sliding counter"] = 150 }), false},
		{"bursts: a log is wrong", burstsWith(func(r *burstReport) { r.most["sliding log"]++ }), false},
		{"bursts: a hammered log is right", burstsWith(func(r *burstReport) { r.hammered["log"] = 1000 }), false},
		{"bursts: a forgetful bucket is right", burstsWith(func(r *burstReport) { r.hammered["bucket"] = 1100 }), false},
		{"bursts: INCR is right", burstsWith(func(r *burstReport) { r.hammered["incr"] = 1000 }), false},
		{"bursts: ours lets more pass", burstsWith(func(r *burstReport) { r.limiter++ }), false},
		{"bursts: our window lets more pass", burstsWith(func(r *burstReport) { r.window++ }), false},
		{"bursts: ours lets nothing pass", burstsWith(func(r *burstReport) { r.took = 10 }), false},

		{"team", checkTeam(worked), true},
		{"team: a part counts twice", workedWith(func(r *teamReport) { r.left = 0 }), false},
		{"team: too early", workedWith(func(r *teamReport) { r.early = true }), false},
		{"team: the wait fails", workedWith(func(r *teamReport) { r.waited = latch.ErrDeleted }), false},
		{"team: no latch is open", workedWith(func(r *teamReport) { r.absent = nil }), false},
		{"team: nobody is lost", workedWith(func(r *teamReport) { r.lost = 0 }), false},
		{"team: never done", workedWith(func(r *teamReport) { r.done = latch.ErrWorkerLost }), false},
		{"election", checkElections(elected), true},
		{"election: told too late", electedWith(func(r *electionReport) { r.told = shortLease + 2*time.Second }), false},
		{"election: nobody sees it", electedWith(func(r *electionReport) { r.values = nil }), false},
		{"election: nobody leads", electedWith(func(r *electionReport) { r.second = "" }), false},
		{"crawl", checkCrawl(crawled), true},
		{"crawl: a page is forgotten", crawledWith(func(r *crawlReport) { r.forgotten++ }), false},
		{"crawl: too many are taken for seen", crawledWith(func(r *crawlReport) { r.falsely = 0.05 }), false},
		{"crawl: none is taken for seen", crawledWith(func(r *crawlReport) { r.falsely = 0 }), false},
		{"crawl: too many not visited", crawledWith(func(r *crawlReport) { r.again = pages / 10 }), false},
		{"crawl: other parameters pass", crawledWith(func(r *crawlReport) { r.other = nil }), false},
		{"crawl: a lost filter says no", crawledWith(func(r *crawlReport) { r.lost = nil }), false},

		{"unlocked: oversold", checkUnlockedSale(oversold), true},
		{"unlocked: nothing wrong to be seen", checkUnlockedSale(books), false},
		{"sale", checkLockedSale(books), true},
		{"sale: nothing sold", checkLockedSale(nil), false},
		{"sale: one phone left", checkLockedSale(books[:9]), false},
		{"sale: one phone too many", checkLockedSale(oversold), false},
		{"sale: a phone sold twice", checkLockedSale(soldTwice), false},
		{"sale: a buyer served twice", checkLockedSale(servedTwice), false},
		{"sale: out of order", checkLockedSale(swapped), false},

		{"ids", checkIDs([][]int{{1, 4}, {2, 3}}, 4), true},
		{"ids: none", checkIDs(nil, 4), false},
		{"ids: one missing", checkIDs([][]int{{1}, {2, 3}}, 4), false},
		{"ids: a duplicate", checkIDs([][]int{{1, 3}, {2, 3}}, 4), false},
		{"ids: a gap", checkIDs([][]int{{1, 5}, {2, 3}}, 4), false},
		{"ids: a gap at the beginning", checkIDs([][]int{{2, 5}, {3, 4}}, 4), false},
		{"ids: going back", checkIDs([][]int{{4, 1}, {2, 3}}, 4), false},

		{"job", checkJob(job), true},
		{"job: hardly renewed", jobWith(func(r *jobReport) { r.renewals = 2 }), false},
		{"job: nobody tried", jobWith(func(r *jobReport) { r.tries = 0 }), false},
		{"job: the rival got in", jobWith(func(r *jobReport) { r.granted = 1 }), false},
		{"job: lost", jobWith(func(r *jobReport) { r.err = lock.ErrLost }), false},
		{"job: too short", jobWith(func(r *jobReport) { r.took = jobTime - 1 }), false},
		{"job: not free after it", jobWith(func(r *jobReport) { r.next = lock.ErrNotAcquired }), false},

		{"nested", checkNested(nested), true},
		{"nested: not counted", nestedWith(func(r *nestedReport) { r.counts = []int{1, 1, 1, 0} }), false},
		{"nested: inner unlock frees", nestedWith(func(r *nestedReport) { r.counts = []int{1, 2, 0, 0} }), false},
		{"nested: not freed", nestedWith(func(r *nestedReport) { r.counts = []int{1, 2, 1, 1} }), false},
		{"nested: a stranger gets in", nestedWith(func(r *nestedReport) { r.stranger = nil }), false},
		{"nested: a stranger's call breaks", nestedWith(func(r *nestedReport) { r.stranger = errors.New("EOF") }), false},
		{"nested: another token", nestedWith(func(r *nestedReport) { r.tokens[1]++ }), false},
		{"nested: no token", nestedWith(func(r *nestedReport) { r.tokens = [2]uint64{} }), false},

		{"theft", checkTheft(theft), true},
		{"theft: told late", theftWith(func(r *theftReport) { r.told++ }), false},
		{"theft: another cause", theftWith(func(r *theftReport) { r.cause = lock.ErrUnlocked }), false},
		{"theft: unlock says nothing", theftWith(func(r *theftReport) { r.unlock = nil }), false},
		{"theft: the thief's lock is gone", theftWith(func(r *theftReport) { r.thiefHolds = 0 }), false},
		{"theft: the token stays", theftWith(func(r *theftReport) { r.tokens[1] = r.tokens[0] }), false},

		{"queue", checkQueue(line), true},
		{"queue: out of order in Redis", lineWith(func(r *queueReport) { r.line = "ABDCEFGH" }), false},
		{"queue: one is not in line", lineWith(func(r *queueReport) { r.line = "ABCDEFG" }), false},
		{"queue: served out of order", lineWith(func(r *queueReport) { r.served = "ABEDGH" }), false},
		{"queue: the dead are served", lineWith(func(r *queueReport) { r.served = "ABCDEG" }), false},
		{"queue: two at once", lineWith(func(r *queueReport) { r.overlaps = 1 }), false},
		{"queue: stays after giving up", lineWith(func(r *queueReport) { r.leftAfter++ }), false},
		{"queue: nobody died", lineWith(func(r *queueReport) { r.deadStays = false }), false},
		{"queue: the dead cost much", lineWith(func(r *queueReport) { r.deadCost++ }), false},
		{"queue: all pay for the dead", lineWith(func(r *queueReport) { r.changes++ }), false},
		{"queue: not long enough to need heartbeats", lineWith(func(r *queueReport) { r.lastWait-- }), false},
		{"queue: one left", lineWith(func(r *queueReport) { r.atEnd = 1 }), false},

		{"library", checkLibrary(visits), true},
		{"library: one at a time", visitsWith(func(r *libraryReport) { r.most = 1 }), false},
		{"library: a reader beside the writer", visitsWith(func(r *libraryReport) { r.met = 1 }), false},
		{"library: half an edition", visitsWith(func(r *libraryReport) { r.readings[0].pages[0] = 1 }), false},
		{"library: the writer is kept out", visitsWith(func(r *libraryReport) { r.revisions = r.revisions[:editions-1] }), false},
		{"library: the writer never gets in", visitsWith(func(r *libraryReport) { r.revisions = nil }), false},
		{"library: a reader goes past the writer", visitsWith(func(r *libraryReport) { r.readings[2].entered = at(299) }), false},
		{"library: nobody comes meanwhile", visitsWith(func(r *libraryReport) { r.readings = r.readings[:2] }), false},
		{"library: nobody joins", visitsWith(func(r *libraryReport) { r.revisions[1].joined = 1 }), false},

		{"quorum", checkQuorum(votes), true},
		{"quorum: not on all", votesWith(func(r *quorumReport) { r.first = 4 }), false},
		{"quorum: nobody died", votesWith(func(r *quorumReport) { r.votes = 5 }), false},
		{"quorum: lost with two", votesWith(func(r *quorumReport) { r.lost = lock.ErrLost }), false},
		{"quorum: not renewed with two dead", votesWith(func(r *quorumReport) { r.until-- }), false},
		{"quorum: B did not try", votesWith(func(r *quorumReport) { r.tries[0] = 0 }), false},
		{"quorum: B got in", votesWith(func(r *quorumReport) { r.grants[0] = 1 }), false},
		{"quorum: A could not unlock", votesWith(func(r *quorumReport) { r.unlock = lock.ErrNotHeld }), false},
		{"quorum: not to be had with two dead", votesWith(func(r *quorumReport) { r.next = lock.ErrNotAcquired }), false},
		{"quorum: had from the dead", votesWith(func(r *quorumReport) { r.then = 4 }), false},
		{"quorum: the third is not missed", votesWith(func(r *quorumReport) { r.cause = nil }), false},
		{"quorum: another cause", votesWith(func(r *quorumReport) { r.cause = lock.ErrUnlocked }), false},
		{"quorum: told late", votesWith(func(r *quorumReport) { r.told++ }), false},
		{"quorum: A did not try before the loss", votesWith(func(r *quorumReport) { r.tries[1] = 1 }), false},
		{"quorum: A got in before the loss", votesWith(func(r *quorumReport) { r.grants[1] = 1 }), false},
		{"quorum: A got in after it", votesWith(func(r *quorumReport) { r.after = nil }), false},

		{"stale", checkStale(stale), true},
		{"stale: lost before it was stuck", staleWith(func(r *staleReport) { r.before = lock.ErrLost }), false},
		{"stale: the token stays", staleWith(func(r *staleReport) { r.tokens[1] = 7; r.refusal = &fence.StaleError{Token: 7, Highest: 7} }), false},
		{"stale: nothing goes wrong without a guard", staleWith(func(r *staleReport) { r.bare = 180 }), false},
		{"stale: not turned away", staleWith(func(r *staleReport) { r.refusal = nil }), false},
		{"stale: refused for another reason", staleWith(func(r *staleReport) { r.refusal = fence.ErrNoToken }), false},
		{"stale: refused without tokens", staleWith(func(r *staleReport) { r.refusal = fence.ErrStale }), false},
		{"stale: another token turned away", staleWith(func(r *staleReport) { r.refusal = &fence.StaleError{Token: 6, Highest: 8} }), false},
		{"stale: by another token", staleWith(func(r *staleReport) { r.refusal = &fence.StaleError{Token: 7, Highest: 9} }), false},
		{"stale: written none the less", staleWith(func(r *staleReport) { r.guarded = 130 }), false},
		{"stale: the hold says nothing", staleWith(func(r *staleReport) { r.after = nil }), false},
		{"stale: no new beginning", staleWith(func(r *staleReport) { r.again = 150 }), false},

		{"left: nothing", checkLeft(nil, nil), true},
		{"left: a key", checkLeft([]string{"leasehold:demo:x:lock"}, nil), false},
		{"left: unknown", checkLeft(nil, errors.New("EOF")), false},
	} {
		if allTrue(test.claims) != test.want {
			t.Errorf("%s: all true: %v, want %v: %v", test.name, !test.want, test.want, test.claims)
		}
	}
}

func allTrue(claims []claim) bool {
	return !slices.ContainsFunc(claims, func(c claim) bool { return !c.ok })
}

// untrue fails the test unless claims has a claim with this text that is not true.
func untrue(t *testing.T, claims []claim, says string) {
	t.Helper()
	if !slices.ContainsFunc(claims, func(c claim) bool { return !c.ok && strings.Contains(c.text, says) }) {
		t.Errorf("of %v, none that says %q is found untrue", claims, says)
	}
}

// onStage returns a stage for one scene, on its own server.
func onStage(t *testing.T) *stage {
	t.Helper()
	s, err := newStage(newScreen(&bytes.Buffer{}), urlOf(newServer(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.data.close)
	t.Cleanup(func() {
		if err := s.closeClients(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newServer starts a Redis in memory that stands for a server of the user.
func newServer(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	server, err := memredis.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func urlOf(server *miniredis.Miniredis) string {
	return "redis://" + server.Addr()
}

// trigger calls a function when a text is written to it.
type trigger struct {
	bytes.Buffer
	on   string
	call func()
}

func (w *trigger) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.on)) {
		w.call()
	}
	return w.Buffer.Write(p)
}
