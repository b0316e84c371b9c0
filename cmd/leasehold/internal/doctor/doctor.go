// Package doctor checks whether a Redis server is suitable for locking, and which permissions
// a Redis user has. It writes only a key or two of its own, which it deletes or lets expire.
package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/redis/rueidis"
)

// Status is the result of a check.
type Status string

const (
	OK      Status = "ok"
	Unknown Status = "unknown" // not checked, for example for lack of permission; no known problem
	Warning Status = "warning" // locks work, with a limitation, or not all types
	Failure Status = "failure" // locks do not work, or can be lost in normal operation
)

// severity has the statuses, from best to worst.
var severity = []Status{OK, Unknown, Warning, Failure}

// Report is the result for a deployment.
type Report struct {
	Server string  `json:"server"` // its address, without secrets
	Mode   string  `json:"mode,omitempty"`
	Status Status  `json:"status"` // the worst of the checks
	Checks []Check `json:"checks"`
}

// Check is one part of the examination.
type Check struct {
	Name   string `json:"name"`
	Node   string `json:"node,omitempty"` // if there are several
	Status Status `json:"status"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"` // what to do about it
}

// Options configures an examination.
type Options struct {
	Server string   // its address, for the report
	User   string   // the user whose permissions are checked, for the advice
	Prefix string   // of the names of the locks that the user may access
	Kinds  []string // the user must have the permissions for these; if empty, a missing permission is a warning
	Role   string   // purpose of the user, one of Roles; empty if unknown

	Slow time.Duration // maximum time of a script, above which there is a warning; 0 means 100 ms
}

// Unreachable returns the report about a deployment that is unreachable.
func Unreachable(o Options, why, advice string) Report {
	r := Report{Server: o.Server}
	r.add(Check{Name: "connection", Status: Failure, Found: why, Advice: advice})
	return r
}

// add adds c, and updates the status of the report.
func (r *Report) add(c Check) {
	r.Checks = append(r.Checks, c)
	if slices.Index(severity, c.Status) >= slices.Index(severity, r.Status) {
		r.Status = c.Status
	}
}

// node is one server of the deployment.
type node struct {
	rueidis.Client
	name string // empty if there is only one
	info map[string]string
	said map[string]rueidis.RedisMessage // its reply to HELLO
	err  error                           // why there is no info
}

// lost returns why the node did not respond, or nil if it did.
func (n *node) lost() error {
	if _, refused := rueidis.IsRedisErr(n.err); refused {
		return nil
	}
	return n.err
}

// primary reports whether the node is a primary. A node that does not report its role counts as one.
func (n *node) primary() bool {
	role := n.said["role"]
	text, _ := role.ToString()
	return n.info["role"] != "slave" && text != "replica" && text != "slave"
}

// patient is the timeout of one command.
const patient = 3 * time.Second

// exam is one examination.
type exam struct {
	Options
	rdb   rueidis.Client
	name  string // the name of a lock that no other client has
	nodes []*node
	away  [][2]int64 // the slots whose primary does not respond
	lost  error      // why a check of the permissions had no reply; nil if all had one
}

// Examine examines all nodes that rdb knows. It returns early if ctx is canceled.
func Examine(ctx context.Context, rdb rueidis.Client, o Options) Report {
	e := &exam{Options: o, rdb: rdb}
	e.meet(ctx)
	r := Report{Server: o.Server, Mode: mode(rdb), Status: OK}
	answers := e.connection(ctx)
	r.add(answers)
	if answers.Status == Failure {
		return r
	}
	lost := map[string]error{}
	e.nodes = slices.DeleteFunc(e.nodes, func(n *node) bool {
		if n.lost() != nil {
			lost[n.name] = n.lost()
		}
		return n.lost() != nil
	})
	for _, c := range e.missing(ctx, lost) {
		r.add(c)
	}
	e.choose()
	for _, examine := range []func(context.Context, *node) Check{e.version, e.role, e.memory, e.clock, e.replicas, e.latency} {
		for _, n := range e.nodes {
			if c := examine(ctx, n); c.Name != "" {
				c.Node = n.name
				r.add(c)
			}
		}
	}
	for _, examine := range []func(context.Context) []Check{e.pubsub, e.rights, e.lock} {
		if ctx.Err() != nil {
			r.add(Check{Name: "time", Status: Failure, Found: context.Cause(ctx).Error(), Advice: "check what keeps the server busy, and the network"})
			return r
		}
		for _, c := range examine(ctx) {
			r.add(c)
		}
	}
	return r
}

func mode(rdb rueidis.Client) string {
	switch rdb.Mode() {
	case rueidis.ClientModeCluster:
		return "cluster"
	case rueidis.ClientModeSentinel:
		return "sentinel"
	}
	return "standalone"
}

// meet finds the nodes, and reads their replies to HELLO and INFO.
func (e *exam) meet(ctx context.Context) {
	clients := e.rdb.Nodes()
	var asking sync.WaitGroup
	for name, c := range clients {
		n := &node{Client: c}
		if len(clients) > 1 || e.rdb.Mode() == rueidis.ClientModeCluster {
			n.name = name
		}
		e.nodes = append(e.nodes, n)
		asking.Go(func() {
			hello := ask(ctx, c, "HELLO")
			n.said, _ = hello.AsMap() // an old server does not support it
			info, err := ask(ctx, c, "INFO", "all").ToString()
			n.info, n.err = parseInfo(info), err
		})
	}
	asking.Wait()
	slices.SortFunc(e.nodes, func(a, b *node) int { return strings.Compare(a.name, b.name) })
}

// missing returns a check for each server that did not respond, and for each that the client does not know because the cluster marks it as
// failed. The checks show which of them are primaries.
func (e *exam) missing(ctx context.Context, lost map[string]error) (checks []Check) {
	if e.rdb.Mode() == rueidis.ClientModeCluster && len(e.nodes) > 0 {
		ctx, cancel := context.WithTimeout(ctx, patient)
		defer cancel()
		at := e.nodes[0]
		all, err := slots.Primaries(ctx, at, at.name)
		if err == nil {
			for _, p := range all {
				if slices.ContainsFunc(e.nodes, func(n *node) bool { return n.name == p.Addr }) {
					continue
				}
				why, known := lost[p.Addr]
				if !known {
					why = errors.New("the cluster counts it as failed")
				}
				delete(lost, p.Addr)
				e.away = append(e.away, p.Slots...)
				checks = append(checks, Check{Name: "connection", Node: p.Addr, Status: Failure, Found: fmt.Sprintf("primary does not respond: %v; no lock in its %d slots can be acquired, renewed or listed", why, size(p.Slots)),
					Advice: "restart it, or fail over to its replica; check its log"})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		checks = append(checks, Check{Name: "connection", Node: name, Status: Failure, Found: lost[name].Error(), Advice: "check that the server is running, and its log"})
	}
	return checks
}

// size returns the number of slots in some ranges.
func size(ranges [][2]int64) (n int64) {
	for _, r := range ranges {
		n += r[1] - r[0] + 1
	}
	return n
}

// choose sets the name of the lock that the exam uses: one that no other client uses, if possible on a server that responds.
func (e *exam) choose() {
	for {
		e.name = e.Prefix + "leasehold-doctor:" + strings.ToLower(rand.Text()[:12])
		slot := int64(slots.OfKey(e.rdb, e.name))
		away := func(r [2]int64) bool { return r[0] <= slot && slot <= r[1] }
		switch {
		case !slices.ContainsFunc(e.away, away),
			strings.Contains(e.Prefix, "{"), // braces in the prefix decide the slot
			size(e.away) >= 16384:           // no primary responds
			return
		}
	}
}

// connection checks whether the server responds, or for a cluster, any server.
func (e *exam) connection(ctx context.Context) Check {
	sent := time.Now()
	err := ask(ctx, e.rdb, "PING").Error()
	for _, n := range e.nodes {
		if err != nil && !denied(err) && len(e.nodes) > 1 && n.lost() == nil {
			sent = time.Now()
			err = ask(ctx, n, "PING").Error()
		}
	}
	if err != nil && !denied(err) {
		return Check{Name: "connection", Status: Failure, Found: err.Error(), Advice: "check whether the server is busy or paused, and its log"}
	}
	as := ""
	if e.User != "" {
		as = " as " + e.User
	}
	return Check{Name: "connection", Status: OK, Found: fmt.Sprintf("%s%s, reply in %v", mode(e.rdb), as, round(time.Since(sent)))}
}

// ask sends one command.
func ask(ctx context.Context, c rueidis.CoreClient, words ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	return c.Do(ctx, c.B().Arbitrary(words...).Build())
}

// denied reports whether err means that the user lacks a permission.
func denied(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(reply.Error(), "NOPERM")
}

// unasked returns a check of something that could not be read, for example because the user lacks the permission.
func unasked(name, right string, err error) Check {
	if !denied(err) {
		return Check{Name: name, Status: Unknown, Found: err.Error()}
	}
	return Check{Name: name, Status: Unknown, Found: "missing permission", Advice: "grant the user of leasehold doctor " + right}
}

// parseInfo returns the fields of a reply to INFO.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// round rounds a duration for display.
func round(d time.Duration) time.Duration {
	if d > 10*time.Millisecond || d < -10*time.Millisecond {
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
