package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Force runs a script that frees spec, and reports whether anybody held it. It is sent once.
// The holders of this session are told, and those of other clients that listen.
func (s *Session) Force(ctx context.Context, spec *Spec, q inquiry[luascripts.Verdict]) (bool, error) {
	// Before the script runs: an owner that comes to hold the lock after it must not be
	// told that the lock is lost.
	held := s.holding(spec)
	end := time.Now().Add(s.OpTimeout) // of all three commands together
	others := s.others(ctx, spec, s.OpTimeout/3)
	verdict, err := once(ctx, s, spec, "force unlock", func() (luascripts.Verdict, error) {
		v, _, err := command.Send[luascripts.Verdict](ctx, s.sender, time.Until(end), command.Func[luascripts.Verdict](func(ctx context.Context) (luascripts.Verdict, error) {
			return q(ctx, s.rdb, spec.Keys)
		}))
		return v, command.Foreign(v, err)
	})
	if err != nil {
		return false, err
	}
	for _, t := range held {
		t.lease.Lose(fmt.Errorf("%w: %w", watchdog.ErrGone, lock.ErrForceUnlocked))
	}
	s.mayBeFree(spec)
	if verdict == luascripts.Done {
		s.tell(ctx, spec, others, time.Until(end))
	}
	return verdict == luascripts.Done, nil
}

// tellMost is how many owners of other clients Force tells at once. The renewals tell the rest.
const tellMost = 64

// others returns the owners of other clients that hold spec, if Force should tell them. An owner that obtains the
// lock later is not among them, and detects the loss from its next renewal.
func (s *Session) others(ctx context.Context, spec *Spec, limit time.Duration) (owners []string) {
	if !s.WatchForced {
		return nil
	}
	k := spec.Keys
	fields, _, err := command.Send[[]string](ctx, s.sender, limit, command.Func[[]string](func(ctx context.Context) ([]string, error) {
		if k.Wish == "" { // a plain lock or a fair one: it has one owner
			all, err := s.rdb.Do(ctx, s.rdb.B().Hgetall().Key(k.Lock).Build()).AsStrMap()
			return slices.Collect(maps.Keys(all)), err
		}
		part, err := s.rdb.Do(ctx, s.rdb.B().Hscan().Key(k.Lock).Cursor(0).Count(tellMost).Build()).AsScanEntry()
		var fields []string
		for i := 0; i < len(part.Elements); i += 2 {
			fields = append(fields, part.Elements[i])
		}
		return fields, err
	}))
	if err != nil { // then Force says what is wrong, or the renewals tell
		return nil
	}
	for _, f := range fields {
		owner := strings.TrimSuffix(f, luascripts.Writing)
		id := lock.ClientID(owner)
		if len(id) == len(s.id) && id != s.id && len(owners) < tellMost && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	return owners
}

// tell tells the clients of these owners that spec was unlocked by force. It is a reason for them to ask,
// and so it does not matter if a message is lost.
func (s *Session) tell(ctx context.Context, spec *Spec, owners []string, limit time.Duration) {
	if len(owners) == 0 || limit <= 0 {
		return
	}
	by := registry.Self(s.id, "", "").String()
	_, _, _ = command.Send[struct{}](ctx, s.sender, limit, command.Func[struct{}](func(ctx context.Context) (struct{}, error) {
		// The note is for a holder that no message reaches, as its hold is younger than a second; and for operators.
		messages := rueidis.Commands{registry.SetNote(s.rdb, keys.Forced(s.KeyPrefix+spec.Name), by, owners)}
		for _, owner := range owners {
			channel, message := registry.Taken(owner, by)
			if spec.Keys.Publish == "SPUBLISH" {
				messages = append(messages, s.rdb.B().Spublish().Channel(channel).Message(message).Build())
			} else {
				messages = append(messages, s.rdb.B().Publish().Channel(channel).Message(message).Build())
			}
		}
		s.rdb.DoMulti(ctx, messages...)
		return struct{}{}, nil
	}))
}

// holding returns the acquisitions of this session that have the lock of spec, on both sides.
func (s *Session) holding(spec *Spec) []*acquisition {
	at := s.find(spec.id())
	if at == nil {
		return nil
	}
	return at.holding(nil)
}

// holding appends the acquisitions that have the lock in this process to held.
func (at *entry) holding(held []*acquisition) []*acquisition {
	at.lock()
	defer at.unlock()
	for _, t := range append(at.state.Held(), at.state.Offered()...) {
		held = append(held, acquisitionOf(t))
	}
	return held
}

// hearing is how far a session has come with listening for forced unlocks.
type hearing struct {
	due   atomic.Bool // it looks in a while whether it must listen
	begun sync.Once   // it listens
}

// hearAfter is how old a hold is when its client begins to listen. Most locks are held for less: they cost no
// subscription.
const hearAfter = time.Second

// hearSoon has a session that has just obtained a lock look in a while whether it still has one.
func (s *Session) hearSoon() {
	if s.WatchForced && !s.hearing.due.Load() && s.hearing.due.CompareAndSwap(false, true) {
		time.AfterFunc(hearAfter, s.hearOfHolds)
	}
}

// hearOfHolds has the session listen if it has a hold that is old enough, and look again if all are younger.
func (s *Session) hearOfHolds() {
	if s.enter() != nil {
		return
	}
	defer s.sender.Done()
	s.hearing.due.Store(false) // first: from now on, an owner that obtains a lock sees to it that somebody looks
	old := time.Now().Add(-hearAfter)
	young := false
	if t := s.search(func(t *acquisition) bool {
		young = true
		return !t.since().After(old)
	}); t != nil {
		s.hearing.due.Store(true) // for good
		s.hearing.begun.Do(s.hear)
	} else if young {
		s.hearSoon()
	}
}

// hearMost is how many messages about forced unlocks are looked at at a time. What is more
// than that, the renewals find out.
const hearMost = 16

// hear listens, until the session closes, for messages that a lock of the session was
// unlocked by force. So the holder is told at once, and not at its next renewal. A message
// is only a reason to ask.
func (s *Session) hear() {
	asking := make(chan struct{}, hearMost)
	s.hub.Subscribe(keys.Client(s.id), func(message string) {
		number, by, ok := registry.ParseTaken(message)
		if !ok || s.enter() != nil {
			return
		}
		select {
		case asking <- struct{}{}:
			go func() { // a command must not be sent from where messages are heard
				defer s.sender.Done()
				defer func() { <-asking }()
				s.onForcedUnlock(s.id+":"+number, by)
			}()
		default:
			s.sender.Done()
		}
	}, s.hearAgain)
}

// hearAgain asks about all that the session holds, because a message may have been missed: it has just begun to listen, or listens again.
// A hold that was younger than a second when it was taken is told by this.
func (s *Session) hearAgain() {
	if s.enter() != nil {
		return
	}
	go func() { // a command must not be sent from where messages are heard
		defer s.sender.Done()
		held := make(map[*Kind][]*acquisition)
		s.search(func(t *acquisition) bool {
			held[t.spec.Kind] = append(held[t.spec.Kind], t)
			return false
		})
		for _, all := range held {
			for batch := range slices.Chunk(all, batchSize) {
				s.ask(batch)
			}
		}
	}()
}

// ask asks whether these acquisitions of one kind still have their locks, and ends their holds if not. The sender counts the caller.
func (s *Session) ask(batch []*acquisition) {
	slices.SortFunc(batch, func(a, b *acquisition) int { return int(a.spec.slot) - int(b.spec.slot) })
	questions := make([]luascripts.Renewal, len(batch))
	for i, t := range batch {
		questions[i] = t.renewal()
	}
	// A renewal only ever lengthens a lease; so this one changes nothing.
	replies, _, err := command.Send[[]luascripts.Renewed](context.Background(), s.sender, s.OpTimeout, command.Func[[]luascripts.Renewed](func(ctx context.Context) ([]luascripts.Renewed, error) {
		return batch[0].spec.Renew(ctx, s.rdb, questions, time.Millisecond, batchSize), nil
	}))
	if err != nil {
		return
	}
	var lost []*acquisition
	for i, r := range replies {
		if r.Err == nil && r.Verdict == luascripts.Gone {
			lost = append(lost, batch[i])
		}
	}
	for i, cause := range s.allGone(lost) {
		lost[i].watch().Lose(cause)
	}
}

// allGone is gone for several acquisitions at once.
func (s *Session) allGone(ts []*acquisition) []error {
	causes := make([]error, len(ts))
	var all sync.WaitGroup
	for i, t := range ts {
		all.Go(func() { causes[i] = s.gone(t, luascripts.Gone) })
	}
	all.Wait()
	return causes
}

// gone returns why t is lost: the server gave verdict v, and so does not have it as ours. If an operator has unlocked it by force meanwhile, it
// says that, by the note of package admin, of which no message need have come. The sender counts the caller.
func (s *Session) gone(t *acquisition, v luascripts.Verdict) error {
	cause := goneBy(v)
	if v == luascripts.Foreign {
		return cause
	}
	since, key := t.since(), keys.Forced(s.KeyPrefix+t.spec.Name)
	note, _, err := command.Send[registry.Note](context.Background(), s.sender, s.OpTimeout/4, command.Func[registry.Note](func(ctx context.Context) (registry.Note, error) {
		return registry.ReadNote(ctx, s.rdb, key)
	}))
	// The slack is for the way of the grant: a note about the owner before names another client.
	if err != nil || since.IsZero() || note.Age > time.Since(since)+s.OpTimeout || !note.About(s.id, s.ClientName) {
		return cause
	}
	return forceUnlocked{note.Operator()}
}

// onForcedUnlock asks whether the owner still has its lock, of which a message says that it was
// unlocked by force, and ends the holds if not. The sender counts the caller.
func (s *Session) onForcedUnlock(owner, by string) {
	t := s.search(func(t *acquisition) bool { return t.Name == owner })
	if t == nil {
		return
	}
	question := t.renewal()
	// A renewal only ever lengthens a lease; so this one changes nothing.
	renewed, _, _ := command.Send[luascripts.Renewed](context.Background(), s.sender, s.OpTimeout, command.Func[luascripts.Renewed](func(ctx context.Context) (luascripts.Renewed, error) {
		r := t.spec.Renew(ctx, s.rdb, []luascripts.Renewal{question}, time.Millisecond, 1)[0]
		return r, r.Err
	}))
	if renewed.Verdict == luascripts.Gone { // without a reply there is no verdict
		t.watch().Lose(forceUnlocked{by})
	}
}

// forceUnlocked is the cause of a loss by a force-unlock. The server no longer has the lock, as with other losses that
// match lock.ErrGone, but the text of that error lists causes that do not apply here.
type forceUnlocked struct{ by string }

func (e forceUnlocked) Error() string { return fmt.Sprintf("%v by %s", lock.ErrForceUnlocked, e.by) }

// Unwrap returns what the error matches.
func (e forceUnlocked) Unwrap() []error { return []error{watchdog.ErrGone, lock.ErrForceUnlocked} }

// search returns an acquisition that has a lock now, and that is the one; nil if there is none.
func (s *Session) search(is func(*acquisition) bool) *acquisition {
	s.table.mu.Lock()
	var all []*entry
	for _, at := range s.table.known {
		all = append(all, at)
	}
	s.table.mu.Unlock()
	var held []*acquisition
	for _, at := range all {
		held = at.holding(held[:0])
		for _, t := range held {
			if is(t) {
				return t
			}
		}
	}
	return nil
}
