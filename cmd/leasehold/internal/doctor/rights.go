package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// need is the list of rights for one purpose, in the form of ACL SETUSER, for locks whose
// names begin with "orders:". These are the lists of docs/SECURITY.md, without the patterns
// for names that have braces of their own; a test compares them.
type need struct {
	head   string // the head of the list there
	kind   string // the name in the option; empty if it cannot be chosen
	rights string
}

const plainChannel = "&redisson_lock__channel:{orders:* "

var needs = []need{
	{"every", "", "~orders:* +evalsha +eval +ping +cluster|slots +cluster|shards +subscribe +unsubscribe +publish " +
		"+role +hset +hdel +hexists +hlen +pexpire +pttl +time +del"},
	{"NewLock", "plain", plainChannel + "&leasehold_channel:{orders:* +hgetall +hmget +pubsub|numsub"},
	{"NewFairLock", "fair", plainChannel + "+hgetall ~redisson_lock_queue:{orders:* ~redisson_lock_timeout:{orders:* " +
		"+llen +lindex +lpos +lrange +lrem +ltrim +rpush +persist +zadd +zcard +zmscore +zrem +zrevrange +zscore"},
	{"NewRWLock", "rw", "&redisson_rwlock:{orders:* ~{orders:*:rwlock_timeout:* ~leasehold_rwlock_wish:{orders:* ~leasehold_rwlock_turn:{orders:* +exists +hget +hscan +get +set"},
	{"Registry", "registry", "~leasehold_client:* +hmget"},
	{"Forced", "forced", "&leasehold_client:*"},
	{"WithFencing", "fencing", "~redisson_lock_token:{orders:* +get +set"},
	{"WithReplicas", "replicas", "+wait"},
	{"NewQuorum", "quorum", "+info"},
	{"admin", "admin", "~leasehold_client:* &leasehold_client:* ~leasehold_forced:{orders:* ~redisson_lock_token:{orders:* +scan +hscan +hget +hmget +exists +llen +get +set"},
	{"Cluster", "", "+asking +pubsub|shardnumsub +ssubscribe +sunsubscribe +spublish"},
}

// Kinds returns the values for Options.Kinds.
func Kinds() (kinds []string) {
	for _, n := range needs {
		if n.kind != "" {
			kinds = append(kinds, n.kind)
		}
	}
	return kinds
}

// questions are commands that need a right, in a form that changes nothing: either they
// only read, or their arguments are wrong, and Redis checks the right first. One of them
// writes. KEY and CHANNEL are those of a lock that no client has.
//
// The other rights are not tested: an unsubscription cannot be tested by itself, and goes
// with the subscription.
var questions = map[string]string{
	"evalsha": "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0", "eval": "EVAL return 0", "ping": "PING",
	"cluster|slots": "CLUSTER SLOTS", "cluster|shards": "CLUSTER SHARDS", "publish": "PUBLISH CHANNEL doctor",
	"exists": "EXISTS KEY", "scan": "SCAN 0 COUNT 1", "hset": "HSET KEY a 1 odd", "hdel": "HDEL KEY a", "hgetall": "HGETALL KEY", "hexists": "HEXISTS KEY a",
	"pexpire": "PEXPIRE KEY 1000", "pttl": "PTTL KEY", "time": "TIME", "del": "DEL KEY", "hmget": "HMGET KEY a",
	"pubsub|numsub": "PUBSUB NUMSUB CHANNEL", "hget": "HGET KEY a", "llen": "LLEN KEY", "lindex": "LINDEX KEY 0",
	"lrange": "LRANGE KEY 0 0", "lrem": "LREM KEY 0 a", "lpos": "LPOS KEY a", "ltrim": "LTRIM KEY odd odd", "persist": "PERSIST KEY", "zmscore": "ZMSCORE KEY a",
	"hscan": "HSCAN KEY 0", writing: "RPUSH KEY a", "zadd": "ZADD KEY odd a",
	"zcard": "ZCARD KEY", "zrem": "ZREM KEY a", "zrevrange": "ZREVRANGE KEY 0 0", "zscore": "ZSCORE KEY a", "hlen": "HLEN KEY",
	"get": "GET KEY", "set": "SET KEY a ODD", "wait": "WAIT 0 1", "info": "INFO server", "role": "ROLE", "asking": "ASKING",
	"pubsub|shardnumsub": "PUBSUB SHARDNUMSUB CHANNEL", "spublish": "SPUBLISH CHANNEL doctor",
}

// writing is the command whose question writes. It is tested if the key can be deleted.
const writing = "rpush"

// rights checks which rights the user lacks for each kind of lock and option.
func (e *exam) rights(ctx context.Context) (checks []Check) {
	lacking := map[string]bool{}
	for _, n := range e.nodes {
		for _, right := range e.ask(ctx, n) {
			lacking[right] = true
		}
	}
	missing := func(rights string) (lacks []string) {
		for right := range strings.FieldsSeq(rights) {
			if lacking[right] {
				lacks = append(lacks, strings.ReplaceAll(right, "orders:", e.Prefix))
			}
		}
		return lacks
	}
	for _, n := range needs[1:] {
		if n.head == "Cluster" && e.rdb.Mode() != rueidis.ClientModeCluster {
			continue
		}
		wanted := n.kind == "" || slices.Contains(e.Kinds, n.kind)
		if (len(e.Kinds) > 0 || n.head == "admin") && !wanted { // an application needs nothing of admin
			continue
		}
		c := Check{Name: "rights " + strings.ToLower(cmp.Or(n.kind, n.head)), Status: OK, Found: "nothing is missing"}
		lacks := missing(n.rights)
		if strings.HasPrefix(n.head, "New") && n.kind != "quorum" { // a kind of lock
			lacks = append(missing(needs[0].rights), lacks...)
		}
		if len(lacks) > 0 {
			c.Status = Warning
			if wanted {
				c.Status = Failure
			}
			c.Found = fmt.Sprintf("%d missing", len(lacks))
			c.Advice = fmt.Sprintf("ACL SETUSER %s %s", cmp.Or(e.User, "default"), strings.Join(lacks, " "))
		}
		checks = append(checks, c)
	}
	return checks
}

// ask returns the rights that the user lacks on the node.
func (e *exam) ask(ctx context.Context, n *node) (lacks []string) {
	asked := map[string]bool{}
	for _, need := range needs {
		for right := range strings.FieldsSeq(need.rights) {
			if asked[right] {
				continue
			}
			asked[right] = true
			writes := right == "+"+writing
			if writes && slices.Contains(lacks, "+del") {
				continue
			}
			if e.lacks(ctx, n, right) {
				lacks = append(lacks, right)
			}
			if writes {
				ask(ctx, n, "DEL", e.name)
			}
		}
	}
	return lacks
}

// lacks reports whether the user lacks a right on the node.
func (e *exam) lacks(ctx context.Context, n *node, right string) bool {
	command, object := right[1:], "command"
	var words []string
	switch right[0] {
	case '+':
		if command == "subscribe" || command == "ssubscribe" {
			return e.mayNotSubscribe(ctx, n, command == "ssubscribe")
		}
		for word := range strings.FieldsSeq(questions[command]) {
			words = append(words, strings.NewReplacer("KEY", e.name, "CHANNEL", "redisson_lock__channel:{"+e.name+"}").Replace(word))
		}
	case '~':
		words, object = []string{"PTTL", e.like(command)}, "key"
	case '&':
		words, object = []string{"PUBLISH", e.like(command), "doctor"}, "channel"
	}
	if len(words) == 0 {
		return false
	}
	return deniedFor(ask(ctx, n, words...).Error(), object)
}

// like returns a key or channel that matches the pattern.
func (e *exam) like(pattern string) string {
	name := strings.Replace(pattern, "orders:*", e.name, 1)
	if strings.Contains(name, "{") && !strings.Contains(name, "}") {
		name = strings.Replace(name, e.name, e.name+"}", 1)
	}
	return strings.ReplaceAll(name, "*", "0")
}

// deniedFor reports whether err says that the user may not use an object of that sort: a
// command, a key, or a channel. Redis checks them in this order.
func deniedFor(err error, object string) bool {
	if !denied(err) {
		return false
	}
	text, sort := err.Error(), "command"
	switch {
	case strings.Contains(text, "channel"):
		sort = "channel"
	case strings.Contains(text, "a key") || strings.Contains(text, "the keys"):
		sort = "key"
	}
	return sort == object
}

// mayNotSubscribe reports whether the user lacks the right to subscribe.
func (e *exam) mayNotSubscribe(ctx context.Context, n *node, sharded bool) (lacks bool) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	channel := "redisson_lock__channel:{" + e.name + "}"
	subscribe := n.B().Subscribe().Channel(channel).Build()
	if sharded {
		subscribe = n.B().Ssubscribe().Channel(channel).Build()
	}
	listening := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { cancel() })
	return deniedFor(n.Receive(listening, subscribe, func(rueidis.PubSubMessage) {}), "command")
}
