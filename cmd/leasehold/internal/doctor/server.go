package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// version checks the product and version of the server. Redis before 6.2 is not tested.
func (e *exam) version(_ context.Context, n *node) Check {
	said := func(key string) string {
		m := n.said[key]
		text, _ := m.ToString()
		return text
	}
	product, number := "Redis", cmp.Or(n.info["redis_version"], said("version"))
	if v := n.info["valkey_version"]; v != "" || said("server") == "valkey" {
		product, number = "Valkey", cmp.Or(v, said("version"))
	}
	c := Check{Name: "version", Status: OK, Found: product + " " + number}
	switch {
	case number == "":
		return Check{Name: "version", Status: Unknown, Found: "unknown: not reported by the server"}
	case product == "Redis" && older(number, 6, 2):
		c.Status, c.Advice = Warning, "use 6.2 or later; this version is not tested"
	}
	return c
}

// older reports whether version is before major.minor.
func older(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	a, err := strconv.Atoi(parts[0])
	if err != nil || len(parts) < 2 {
		return false
	}
	b, _ := strconv.Atoi(parts[1])
	return a < major || a == major && b < minor
}

// role checks whether the server accepts writes. The replicas of a cluster need not.
func (e *exam) role(_ context.Context, n *node) Check {
	said := n.said["role"]
	text, _ := said.ToString()
	switch {
	case text == "" && n.info["role"] == "":
		return Check{Name: "role", Status: Unknown, Found: "unknown: not reported by the server"}
	case n.primary():
		return Check{Name: "role", Status: OK, Found: "primary"}
	case e.rdb.Mode() == rueidis.ClientModeCluster:
		return Check{Name: "role", Status: OK, Found: "replica"}
	}
	return Check{Name: "role", Status: Failure, Found: "replica: locks cannot be acquired on it",
		Advice: "connect to the primary, or via Sentinel (?master_set=NAME)"}
}

// nearlyFull is the share of maxmemory above which the server will soon reject
// locks.
const nearlyFull = 0.9

// memory checks what the server does when its memory is full.
func (e *exam) memory(_ context.Context, n *node) Check {
	const look = "check that CONFIG GET maxmemory-policy returns noeviction: any other policy can remove held locks"
	if n.err != nil {
		c := unasked("memory", "+info", n.err)
		c.Status, c.Found = Warning, "the eviction policy is unknown: "+c.Found
		c.Advice = strings.TrimPrefix(c.Advice+"; or "+look, "; or ")
		return c
	}
	policy, most, used := n.info["maxmemory_policy"], number(n.info["maxmemory"]), number(n.info["used_memory"])
	c := Check{Name: "memory", Status: OK, Found: fmt.Sprintf("policy %s, %d MB of %d used", policy, used>>20, most>>20)}
	if most == 0 {
		c.Found = fmt.Sprintf("policy %s, no maxmemory, %d MB used", policy, used>>20)
	}
	switch {
	case policy == "":
		return Check{Name: "memory", Status: Warning, Found: "the eviction policy is unknown: not reported by the server", Advice: look}
	case policy != "noeviction" && most > 0:
		c.Status, c.Advice = Failure, "CONFIG SET maxmemory-policy noeviction, or use a separate server for locks: this one can remove held locks"
	case policy != "noeviction":
		c.Status, c.Advice = Warning, "CONFIG SET maxmemory-policy noeviction: if maxmemory is set later, the server can remove held locks"
	case most > 0 && float64(used) > nearlyFull*float64(most):
		c.Status, c.Advice = Warning, "raise maxmemory: once memory is full, no lock can be acquired"
	}
	return c
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// skew is the maximum clock skew without a warning.
const skew = time.Second

// clock compares the server's clock with this machine's. Leases do not depend on it, but
// tokens do, after a failover to a server with a different clock.
func (e *exam) clock(ctx context.Context, n *node) Check {
	var off, trip time.Duration
	for i := range 3 {
		sent := time.Now()
		reply, err := ask(ctx, n, "TIME").AsStrSlice()
		took := time.Since(sent)
		if err != nil || len(reply) != 2 {
			return unasked("clock", "+time", cmp.Or(err, fmt.Errorf("TIME: %q", reply)))
		}
		at := time.Unix(number(reply[0]), number(reply[1])*1000)
		if i == 0 || took < trip { // the shortest round trip gives the best value
			off, trip = at.Sub(sent.Add(took/2)), took
		}
	}
	c := Check{Name: "clock", Status: OK, Found: fmt.Sprintf("%v %s this machine (±%v)", round(off.Abs()), beside(off), round(trip/2))}
	if off.Abs() > skew+trip/2 {
		c.Status, c.Advice = Warning, "synchronize the clocks with NTP: leases do not depend on them, but fencing tokens can decrease after a failover to a server with a slow clock (lock.WithFencing prevents that)"
	}
	return c
}

// beside returns the words for the direction in which a clock is off.
func beside(off time.Duration) string {
	if off < 0 {
		return "behind"
	}
	return "ahead of"
}

// replicas checks how many replicas there are, and how fast they confirm a write.
func (e *exam) replicas(ctx context.Context, n *node) Check {
	switch {
	case n.err != nil:
		return unasked("replicas", "+info", n.err)
	case !n.primary():
		return Check{}
	}
	count := int(number(n.info["connected_slaves"]))
	if count == 0 {
		return Check{Name: "replicas", Status: OK, Found: "none: if this server fails, its locks are lost"}
	}
	online := 0
	for i := range count {
		if strings.Contains(n.info[fmt.Sprintf("slave%d", i)], "state=online") {
			online++
		}
	}
	c := Check{Name: "replicas", Status: OK, Found: fmt.Sprintf("%d of %d online", online, count)}
	if online < count {
		c.Status, c.Advice = Warning, "wait until they are synchronized; check INFO replication"
	}
	confirmed, took, err := e.wait(ctx, n, count)
	switch {
	case elsewhere(err):
		c.Found += "; not measured: the key of this check is on another primary"
	case denied(err):
		c.Found += "; not measured: missing permission for SET or WAIT"
		c.Status = cmp.Or(map[Status]Status{OK: Unknown}[c.Status], c.Status)
	case err != nil:
		c.Found += fmt.Sprintf("; not measured: %v", err)
		c.Status = Warning
	case confirmed < count:
		c.Status, c.Found = Warning, c.Found+fmt.Sprintf("; %d confirmed a write within %v", confirmed, waitLimit)
		c.Advice = "check their lag in INFO replication: a failover loses locks that were not replicated"
	default:
		c.Found += fmt.Sprintf("; all confirm a write in %v", round(took))
	}
	return c
}

// elsewhere reports whether err means that another node of the cluster has the key.
func elsewhere(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	if ok {
		_, ok = reply.IsMoved()
	}
	return ok
}

// waitLimit is the maximum time to wait for replicas.
const waitLimit = time.Second

// wait writes a key, and waits until count replicas have it. Without a write, WAIT returns immediately.
func (e *exam) wait(ctx context.Context, n *node, count int) (confirmed int, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	err = n.Dedicated(func(c rueidis.DedicatedClient) error {
		sent := time.Now()
		if err := c.Do(ctx, c.B().Set().Key(e.name).Value("1").Px(time.Second).Build()).Error(); err != nil {
			return err
		}
		got, err := c.Do(ctx, c.B().Wait().Numreplicas(int64(count)).Timeout(waitLimit.Milliseconds()).Build()).AsInt64()
		confirmed, took = int(got), time.Since(sent)
		return err
	})
	return confirmed, took, err
}

const (
	runs = 20                     // of the script, for its latency
	slow = 100 * time.Millisecond // the default of Options.Slow
)

// latency runs a script repeatedly, because locks require scripts.
func (e *exam) latency(ctx context.Context, n *node) Check {
	if !n.primary() {
		return Check{}
	}
	var took []time.Duration
	for range runs {
		sent := time.Now()
		err := ask(ctx, n, "EVAL", "return 1", "0").Error()
		if err != nil {
			return Check{Name: "scripts", Status: Failure, Found: err.Error(), Advice: "allow EVAL and EVALSHA: locks require scripts"}
		}
		took = append(took, time.Since(sent))
	}
	slices.Sort(took)
	c := Check{Name: "scripts", Status: OK, Found: fmt.Sprintf("allowed; median %v, slowest of %d %v", round(took[runs/2]), runs, round(took[runs-1]))}
	if took[runs-1] > cmp.Or(e.Slow, slow) {
		c.Status, c.Advice = Warning, "check SLOWLOG GET for commands that keep the server busy, and the network"
	}
	return c
}
