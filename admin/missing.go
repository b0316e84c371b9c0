package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/redis/rueidis"
)

// Missing is a primary of a cluster that does not respond. A list lacks its keys.
type Missing struct {
	Server string // its address
	Err    error  // why there is no response
}

// IncompleteError is the last error of a list of a cluster in which some primaries do not respond. The list has everything
// that the other primaries store.
type IncompleteError struct{ Missing []Missing }

// Error names each server.
func (e *IncompleteError) Error() string {
	var all []string
	for _, m := range e.Missing {
		all = append(all, fmt.Sprintf("%s does not respond (%v)", m.Server, m.Err))
	}
	return "incomplete: " + strings.Join(all, ", ")
}

// add adds the servers in missing that e does not have yet.
func (e *IncompleteError) add(missing []Missing) {
	for _, m := range missing {
		if !slices.ContainsFunc(e.Missing, func(other Missing) bool { return other.Server == m.Server }) {
			e.Missing = append(e.Missing, m)
		}
	}
}

// absence is a primary that did not respond.
type absence struct {
	Missing
	slots [][2]int64 // first and last
	at    time.Time
}

// absentFor is how long a server that did not respond is skipped, because every attempt can take the whole command timeout.
const absentFor = 5 * time.Second

// lackedFor is how long the keys of a server that did not respond count as missing: absentFor and the time of a long page.
const lackedFor = absentFor + time.Minute

// absences returns the primaries that did not respond within the latest time, according to the last call of masters. A new page
// retries a primary after absentFor. Until that page ends, the primary stays missing even if absentFor has elapsed.
func (a *Admin) absences(latest time.Duration) []absence {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.absent), func(m absence) bool { return time.Since(m.at) > latest })
}

// missing returns what a list lacks now.
func (a *Admin) missing() (all []Missing) {
	for _, m := range a.absences(lackedFor) {
		all = append(all, m.Missing)
	}
	return all
}

// lost returns the absence of the server at addr, on which a command has failed with err.
func (a *Admin) lost(addr string, err error) absence {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no reply within %v", a.timeout)
	}
	return absence{Missing: Missing{addr, err}, at: time.Now()}
}

// lose records that a primary no longer responds.
func (a *Admin) lose(n node, err error) {
	m := a.lost(n.addr, err)
	m.slots = n.slots
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absent = append(a.absent, m)
}

// lacks reports whether a key is on a primary that does not respond.
func (a *Admin) lacks(key string) bool {
	for _, m := range a.absences(lackedFor) {
		slot := int64(slots.OfKey(a.rdb, key))
		if slices.ContainsFunc(m.slots, func(r [2]int64) bool { return r[0] <= slot && slot <= r[1] }) {
			return true
		}
	}
	return false
}

// node is a primary, or the only server.
type node struct {
	rueidis.Client
	addr  string
	slots [][2]int64 // nil if it is the only server, or if they are unknown
}

// first returns the lowest slot of n, or a number above all slots if it is unknown.
func (n node) first() int64 {
	if len(n.slots) == 0 {
		return 1 << 14
	}
	return n.slots[0][0]
}

// compare compares n with the node at addr whose lowest slot is slot. Nodes are ordered by slot, because a failover changes only the
// address.
func (n node) compare(slot int64, addr string) int {
	return cmp.Or(cmp.Compare(n.first(), slot), cmp.Compare(n.addr, addr))
}

// masters returns the primaries that respond, always in the same order. Those that do not respond are in missing afterwards.
func (a *Admin) masters(ctx context.Context) ([]node, error) {
	if a.rdb.Mode() != rueidis.ClientModeCluster {
		return []node{{Client: a.rdb, addr: "-"}}, nil
	}
	caller := ctx
	ctx, cancel := a.within(ctx)
	defer cancel()
	var (
		mu     sync.Mutex
		asking sync.WaitGroup
		found  []node
		denied error
	)
	lost := make(map[string]absence) // guarded by mu
	known := a.absences(absentFor)
	for _, m := range known {
		lost[m.Server] = absence{Missing: m.Missing, at: m.at}
	}
	for addr, c := range a.rdb.Nodes() {
		if slices.ContainsFunc(known, func(m absence) bool { return m.Server == addr }) {
			continue
		}
		asking.Go(func() {
			role, err := c.Do(ctx, c.B().Role().Build()).ToArray()
			mu.Lock()
			defer mu.Unlock()
			if command.Refused(err) {
				denied = fmt.Errorf("the node at %s: %w", addr, err)
			} else if err != nil {
				lost[addr] = a.lost(addr, err)
			} else if len(role) > 0 {
				if name, _ := role[0].ToString(); name == "master" {
					found = append(found, node{Client: c, addr: addr})
				}
			}
		})
	}
	asking.Wait()
	switch {
	case caller.Err() != nil:
		return nil, command.Ended(caller, 0)
	case denied != nil:
		return nil, denied
	case len(found) == 0:
		var all []error
		for addr, m := range lost {
			all = append(all, fmt.Errorf("the node at %s: %w", addr, m.Err))
		}
		return nil, cmp.Or(errors.Join(all...), errors.New("the cluster has no primary"))
	}
	absent := a.primaries(found, lost)
	slices.SortFunc(found, func(a, b node) int { return a.compare(b.first(), b.addr) })
	a.mu.Lock()
	a.absent = absent
	a.mu.Unlock()
	return found, nil
}

// primaries returns the lost servers that are primaries, according to one of the found servers. It adds primaries that the client does
// not know, because the client forgets a server that the cluster marks as failed. It sets the slots of the found servers.
func (a *Admin) primaries(found []node, lost map[string]absence) (absent []absence) {
	ctx, cancel := a.within(context.Background())
	defer cancel()
	all, err := slots.Primaries(ctx, found[0], found[0].addr)
	if err != nil { // a dead replica then counts as missing, too
		for _, m := range lost {
			absent = append(absent, m)
		}
	}
	for _, p := range all {
		if at := slices.IndexFunc(found, func(n node) bool { return n.addr == p.Addr }); at >= 0 {
			found[at].slots = p.Slots
			continue
		}
		m, known := lost[p.Addr]
		if !known {
			a.refresh(ctx, p.Slots[0])
			m = a.lost(p.Addr, errors.New("node has failed, or is new in the cluster"))
		}
		m.slots = p.Slots
		absent = append(absent, m)
	}
	slices.SortFunc(absent, func(a, b absence) int { return cmp.Compare(a.Server, b.Server) })
	return absent
}

// refresh makes the client look up the server of these slots again, which it does only when a command to that server fails.
func (a *Admin) refresh(ctx context.Context, slots [2]int64) {
	for i := 0; ; i++ {
		question := a.rdb.B().Arbitrary("EXISTS").Keys(keys.Client(strconv.Itoa(i))).Build() // the client does not retry an arbitrary command
		if slot := int64(question.Slot()); slots[0] <= slot && slot <= slots[1] {
			a.rdb.Do(ctx, question) // the result does not matter
			return
		}
	}
}
