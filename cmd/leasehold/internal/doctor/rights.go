package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// need is the list of permissions for one purpose, in the form of ACL SETUSER, for locks whose
// names begin with "orders:". These are the lists of docs/operate/security.md, without the patterns
// for names that contain braces; a test compares them.
type need struct {
	head   string // the heading of the list there
	kind   string // its name in Options.Kinds; empty if it cannot be selected
	rights string
	alone  bool // it needs no other list; checked only if it is selected
	spare  bool // locks work without it, with a limitation
}

const plainChannel = "&redisson_lock__channel:{orders:* "

var needs = []need{
	{head: "every", rights: "~orders:* +evalsha +eval +ping +cluster|slots +cluster|shards +subscribe +unsubscribe +publish " +
		"+role +hset +hdel +hexists +hlen +pexpire +pttl +time +del"},
	{head: "NewLock", kind: "plain", rights: plainChannel + "&leasehold_channel:{orders:* +hgetall +hmget +pubsub|numsub"},
	{head: "NewFairLock", kind: "fair", rights: plainChannel + "+hgetall ~redisson_lock_queue:{orders:* ~redisson_lock_timeout:{orders:* " +
		"+llen +lindex +lpos +lrange +lrem +ltrim +rpush +persist +zadd +zcard +zmscore +zrem +zrevrange +zscore"},
	{head: "NewRWLock", kind: "rw", rights: "&redisson_rwlock:{orders:* ~{orders:*:rwlock_timeout:* ~leasehold_rwlock_wish:{orders:* ~leasehold_rwlock_turn:{orders:* +exists +hget +hscan +get +set"},
	{head: "NewElection", kind: "election", rights: "~leasehold_leader:{orders:* &leasehold_leader:{orders:* +hmget"},
	{head: "Registry", kind: "registry", rights: "~leasehold_client:* +hmget"},
	{head: "Forced", kind: "forced", rights: "&leasehold_client:* ~leasehold_forced:{orders:* +get +set"},
	{head: "WithFencing", kind: "fencing", rights: "~redisson_lock_token:{orders:* +get +set"},
	{head: "WithReplicas", kind: "replicas", rights: "+wait"},
	{head: "WithLinger", kind: "linger", rights: "&leasehold_channel:{orders:*"},
	{head: "NewQuorum", kind: "quorum", rights: "+info"},
	{head: "admin", kind: "admin", rights: "~leasehold_client:* &leasehold_client:* ~leasehold_forced:{orders:* ~leasehold_leader:{orders:* ~redisson_lock_token:{orders:* +scan +hrandfield +hscan +hget +hmget +exists +llen +get +set +getrange +pttl"},
	{head: "Cluster", kind: "cluster", rights: "+asking +pubsub|shardnumsub +ssubscribe +sunsubscribe +spublish"},
	{head: "NewSemaphore", kind: "semaphore", alone: true, rights: "~orders:* ~{orders:*:timeout &redisson_sc:{orders:* ~leasehold_semaphore_queue:{orders:* " +
		"~leasehold_semaphore_alive:{orders:* ~leasehold_semaphore_slots:{orders:* +hgetall +hset &leasehold_semaphore:{orders:* +evalsha +eval +ping +subscribe +unsubscribe +publish +role +time +get +set +incrby " +
		"+pexpire +pttl +llen +lpos +lrange +lrem +rpush +zadd +zcard +zmscore +zrange +zrangebyscore +zrem +zscore"},
	{head: "NewLatch", kind: "latch", alone: true, rights: "~orders:* ~leasehold_latch:{orders:* ~leasehold_latch_calls:{orders:* &redisson_countdownlatch__channel__{orders:* " +
		"+evalsha +eval +ping +subscribe +unsubscribe +publish +role +time +get +set +del +pexpire +pttl +hdel +hmget +hset +zadd +zrangebyscore +zrem +zscore"},
	{head: "NewWaitGroup", kind: "waitgroup", alone: true, rights: "~leasehold_crew:{orders:* &leasehold_crew:{orders:* +evalsha +eval +ping +subscribe +unsubscribe +publish " +
		"+role +time +del +pexpire +pttl +zadd +zcount +zrangebyscore +zrem +zscore"},
	{head: "NewRateLimiter", kind: "ratelimit", alone: true, rights: "~orders:* +evalsha +eval +time +get +set"},
	{head: "NewRedissonRateLimiter", kind: "redisson-ratelimit", alone: true, rights: "~orders:* ~{orders:*:value ~{orders:*:permits +evalsha +eval +time +get +set +hget +hmget +hset " +
		"+del +pexpire +pttl +zadd +zcard +zrange +zrangebyscore +zrem +zremrangebyrank +zremrangebyscore +zscore"},
	{head: "NewBloomFilter", kind: "bloom", alone: true, rights: "~orders:* ~{orders:*:config +evalsha +eval +bitcount +bitfield +bitfield_ro +del +exists +getrange +hmget +hset +setbit +strlen +time"},
}

// roles has the lists that each role needs in addition to the first list and the lists of the selected types. The ACL that leasehold
// prints for a role, and the checks for a role, are built from it.
var roles = []struct {
	name  string
	kinds []string // the types, unless the caller names others
	heads []string
	spare []string // heads of lists without which the user works with a limitation
	reads bool     // it changes nothing, and does not subscribe
	less  string   // permissions in the lists that it does not need
	more  string
}{
	{name: "application", kinds: []string{"plain"}, spare: []string{"Registry", "Forced"}},
	{name: "operator", kinds: listed, heads: []string{"admin"}, more: "+info"},
	{name: "page", kinds: listed, heads: []string{"admin"}, more: "+info", reads: true},
	{name: "exporter", kinds: listed, heads: []string{"admin"}, more: "+info", reads: true, less: "+hgetall +hexists ~leasehold_forced:{orders:* ~redisson_lock_token:{orders:*"},
}

// listed has the types that leasehold ls lists without --kind.
var listed = []string{"plain", "fair", "rw", "election", "semaphore", "latch", "waitgroup"}

// changing has the commands that change data, and those of Pub/Sub.
var changing = strings.Fields("subscribe unsubscribe publish ssubscribe sunsubscribe spublish hset hdel pexpire del lrem ltrim rpush persist zadd zrem " +
	"set wait incrby zremrangebyrank zremrangebyscore bitfield setbit")

// Roles returns the values for Options.Role.
func Roles() (names []string) {
	for _, r := range roles {
		names = append(names, r.name)
	}
	return names
}

// lists returns the lists of permissions that a user in the role of o needs, without duplicates.
func (o Options) lists() (all []need) {
	role := roles[slices.Index(Roles(), o.Role)]
	if !slices.ContainsFunc(o.Kinds, func(kind string) bool { return kind != "cluster" }) {
		o.Kinds = append(slices.Clone(role.kinds), o.Kinds...)
	}
	seen := map[string]bool{}
	for _, less := range strings.Fields(role.less) {
		seen[less] = true
	}
	add := func(n need) {
		var rights []string
		for right := range strings.FieldsSeq(n.rights) {
			if seen[right] || role.reads && (right[0] == '&' || slices.Contains(changing, right[1:])) {
				continue
			}
			seen[right] = true
			rights = append(rights, right)
		}
		n.rights = strings.Join(rights, " ")
		all = append(all, n)
	}
	for _, spare := range []bool{false, true} { // so that no spare list has a permission that is required anyway
		for i, n := range needs {
			n.spare = slices.Contains(role.spare, n.head) && !o.chosen(n)
			if n.spare == spare && (i == 0 || n.spare || o.chosen(n) || slices.Contains(role.heads, n.head)) {
				add(n)
			}
		}
	}
	if role.more != "" {
		add(need{head: "server", rights: role.more})
	}
	return all
}

// ACL returns the command that grants a user the permissions that its role needs, and no others. The user keeps its passwords.
func (o Options) ACL() string {
	words := []string{"ACL", "SETUSER", "leasehold-" + o.Role, "on", "resetkeys", "resetchannels", "-@all"}
	for _, n := range o.lists() {
		for right := range strings.FieldsSeq(n.rights) {
			words = append(words, o.named(right))
			// If a name has braces, its keys get no additional ones.
			if bare := strings.Replace(right, "{orders:", "orders:", 1); bare != right && right[1] != '{' {
				words = append(words, o.named(bare))
			}
		}
	}
	return strings.Join(words, " ")
}

// named returns a permission for names that begin with the prefix of o.
func (o Options) named(right string) string {
	literal := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(o.Prefix)
	return strings.ReplaceAll(right, "orders:", literal)
}

// chosen reports whether n is selected in Options.Kinds.
func (o Options) chosen(n need) bool { return n.kind != "" && slices.Contains(o.Kinds, n.kind) }

// channel returns the channel to which waiters of a selected type other than a lock subscribe, or "" if there is none.
func (e *exam) channel() string {
	for kind, prefix := range map[string]string{"semaphore": "redisson_sc:{", "latch": "redisson_countdownlatch__channel__{", "waitgroup": "leasehold_crew:{"} {
		if slices.Contains(e.Kinds, kind) {
			return prefix + e.name + "}"
		}
	}
	return ""
}

// locks reports whether the user needs locks, as far as the options show.
func (o Options) locks() bool {
	if o.Role != "" && o.Role != "application" {
		return false
	}
	return len(o.Kinds) == 0 || slices.ContainsFunc(needs, func(n need) bool { return o.chosen(n) && !n.alone && n.head != "Cluster" })
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

// questions has a command that tests each permission. Most of them change nothing: they only
// read, or their arguments are wrong, and Redis checks the permission first. The rest, in
// writing, write. KEY and CHANNEL stand for those of a lock that no client uses.
//
// The other permissions are not tested: an unsubscription cannot be tested by itself, and is
// granted together with the subscription.
var questions = map[string]string{
	"evalsha": "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0", "eval": "EVAL return 0", "ping": "PING",
	"cluster|slots": "CLUSTER SLOTS", "cluster|shards": "CLUSTER SHARDS", "publish": "PUBLISH CHANNEL doctor",
	"exists": "EXISTS KEY", "scan": "SCAN 0 COUNT 1", "hset": "HSET KEY a 1 odd", "hdel": "HDEL KEY a", "hgetall": "HGETALL KEY", "hexists": "HEXISTS KEY a",
	"pexpire": "PEXPIRE KEY 1000", "pttl": "PTTL KEY", "time": "TIME", "del": "DEL KEY", "hmget": "HMGET KEY a",
	"pubsub|numsub": "PUBSUB NUMSUB CHANNEL", "hget": "HGET KEY a", "llen": "LLEN KEY", "lindex": "LINDEX KEY 0",
	"lrange": "LRANGE KEY 0 0", "lrem": "LREM KEY 0 a", "lpos": "LPOS KEY a", "ltrim": "LTRIM KEY odd odd", "persist": "PERSIST KEY", "zmscore": "ZMSCORE KEY a",
	"hscan": "HSCAN KEY 0", "hrandfield": "HRANDFIELD KEY", "rpush": "RPUSH KEY a", "hsetnx": "HSETNX KEY a 1", "zadd": "ZADD KEY odd a",
	"zcard": "ZCARD KEY", "zrem": "ZREM KEY a", "zrevrange": "ZREVRANGE KEY 0 0", "zscore": "ZSCORE KEY a", "hlen": "HLEN KEY",
	"get": "GET KEY", "set": "SET KEY a ODD", "wait": "WAIT 0 1", "info": "INFO server", "role": "ROLE", "asking": "ASKING",
	"pubsub|shardnumsub": "PUBSUB SHARDNUMSUB CHANNEL", "spublish": "SPUBLISH CHANNEL doctor",
	"incrby": "INCRBY KEY odd", "zrange": "ZRANGE KEY 0 0", "zrangebyscore": "ZRANGEBYSCORE KEY 0 0", "zremrangebyrank": "ZREMRANGEBYRANK KEY odd odd",
	"zremrangebyscore": "ZREMRANGEBYSCORE KEY odd odd", "bitcount": "BITCOUNT KEY", "bitfield": "BITFIELD KEY GET u1 odd", "bitfield_ro": "BITFIELD_RO KEY GET u1 0",
	"setbit": "SETBIT KEY odd 1", "getrange": "GETRANGE KEY 0 0", "zcount": "ZCOUNT KEY 0 0", "strlen": "STRLEN KEY",
}

// writing has the permissions whose questions write. They are tested only if the key can be deleted or made to expire.
var writing = []string{"+rpush", "+hsetnx"}

// rights checks which permissions the user lacks for each type of lock and each option.
func (e *exam) rights(ctx context.Context) (checks []Check) {
	lists := needs
	if e.Role != "" {
		if e.rdb.Mode() == rueidis.ClientModeCluster {
			e.Kinds = append(slices.Clone(e.Kinds), "cluster")
		}
		lists = e.lists()
	}
	lacking := map[string]bool{}
	for _, n := range e.nodes {
		for _, right := range e.ask(ctx, n, lists) {
			lacking[right] = true
		}
	}
	missing := func(rights string) (lacks []string) {
		for right := range strings.FieldsSeq(rights) {
			if lacking[right] {
				lacks = append(lacks, e.named(right))
			}
		}
		return lacks
	}
	if e.lost != nil {
		checks = append(checks, Check{Name: "permissions", Status: Failure, Found: "not all checked: " + e.lost.Error(), Advice: "run leasehold doctor again; check what keeps the server busy, and the network"})
	}
	if e.Role == "" {
		lists = lists[1:]
	}
	for _, n := range lists {
		if n.head == "Cluster" && e.Role == "" {
			if e.rdb.Mode() != rueidis.ClientModeCluster {
				continue
			}
			if !e.locks() && e.channel() == "" {
				n.rights = "+cluster|slots +cluster|shards +asking" // no client subscribes
			}
		}
		wanted := n.kind == "" || n.head == "Cluster" || e.chosen(n) || e.Role != "" && !n.spare
		if e.Role == "" && (len(e.Kinds) > 0 || n.head == "admin" || n.alone) && !wanted { // an application with locks does not need these
			continue
		}
		c := Check{Name: "permissions " + strings.ToLower(cmp.Or(n.kind, n.head)), Status: OK, Found: "none missing"}
		lacks := missing(n.rights)
		if e.Role == "" && strings.HasPrefix(n.head, "New") && n.kind != "quorum" && !n.alone { // a type of lock
			lacks = append(missing(needs[0].rights), lacks...)
		}
		if len(lacks) > 0 {
			c.Status = Warning
			if wanted {
				c.Status = Failure
			}
			c.Found = fmt.Sprintf("%d missing", len(lacks))
			c.Advice = fmt.Sprintf("ACL SETUSER %s %s", cmp.Or(e.User, "default"), strings.Join(lacks, " "))
			if e.Prefix == "" && slices.ContainsFunc(lacks, func(right string) bool { return strings.ContainsAny(right[:1], "~&%") }) {
				c.Advice = "give the prefix of the lock names (--prefix), or grant all names: " + c.Advice
			}
		}
		checks = append(checks, c)
	}
	return checks
}

// ask returns the permissions of these lists that the user lacks on the node.
func (e *exam) ask(ctx context.Context, n *node, lists []need) (lacks []string) {
	asked := map[string]bool{}
	for _, need := range lists {
		if e.Role == "" && need.alone && !e.chosen(need) {
			continue
		}
		for right := range strings.FieldsSeq(need.rights) {
			if asked[right] {
				continue
			}
			asked[right] = true
			writes := slices.Contains(writing, right)
			if writes && slices.Contains(lacks, "+del") && slices.Contains(lacks, "+pexpire") {
				continue
			}
			if e.lacks(ctx, n, right, e.changes(need, right)) {
				lacks = append(lacks, right)
			}
			if writes && ask(ctx, n, "DEL", e.name).Error() != nil {
				ask(ctx, n, "PEXPIRE", e.name, "1")
			}
		}
	}
	return lacks
}

// changes reports whether a user with the role of o needs more than read access to keys. Redis does not check what a script does, so a
// script that only reads needs the same access as one that writes.
func (o Options) changes(n need, right string) bool {
	at := slices.Index(Roles(), o.Role)
	switch {
	case at >= 0 && roles[at].reads:
		return right == "~orders:*"
	case n.head == "admin":
		return strings.HasPrefix(right, "~leasehold_forced:")
	}
	return true
}

// lacks reports whether the user lacks a permission on the node. For keys, changes means that read access is not enough.
func (e *exam) lacks(ctx context.Context, n *node, right string, changes bool) bool {
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
		// The first command that the user is allowed to run decides: not every list has all of them.
		denies := false
		for _, verb := range []string{"PTTL", "GET", "EXISTS"} {
			if err := e.reply(ctx, n, verb, e.like(command)); !deniedFor(err, "command") {
				denies = deniedFor(err, "key")
				break
			}
		}
		return denies || changes && deniedFor(e.reply(ctx, n, "EVAL", "return 0", "1", e.like(command)), "key")
	case '&':
		words, object = []string{"PUBLISH", e.like(command), "doctor"}, "channel"
	}
	if len(words) == 0 {
		return false
	}
	return deniedFor(e.reply(ctx, n, words...), object)
}

// reply returns the error reply to a command, and records in lost if there is no reply.
func (e *exam) reply(ctx context.Context, n *node, words ...string) error {
	err := ask(ctx, n, words...).Error()
	if _, replied := rueidis.IsRedisErr(err); err != nil && !replied && !rueidis.IsRedisNil(err) {
		e.lost = cmp.Or(e.lost, err)
	}
	return err
}

// like returns a key or channel that matches the pattern.
func (e *exam) like(pattern string) string {
	name := strings.Replace(pattern, "orders:*", e.name, 1)
	if strings.Contains(name, "{") && !strings.Contains(name, "}") {
		name = strings.Replace(name, e.name, e.name+"}", 1)
	}
	return strings.ReplaceAll(name, "*", "0")
}

// deniedFor reports whether err denies access to an object of this sort: a command, a key, or
// a channel. Redis checks them in this order.
func deniedFor(err error, object string) bool {
	if !denied(err) {
		return false
	}
	text, sort := err.Error(), "command"
	switch {
	case strings.Contains(text, " to run "): // the name of the user can contain the words below
	case strings.Contains(text, "channel"):
		sort = "channel"
	case strings.Contains(text, "a key") || strings.Contains(text, "the keys"):
		sort = "key"
	}
	return sort == object
}

// mayNotSubscribe reports whether the user lacks the permission to subscribe.
func (e *exam) mayNotSubscribe(ctx context.Context, n *node, sharded bool) (lacks bool) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	channel := "redisson_lock__channel:{" + e.name + "}"
	subscribe := n.B().Subscribe().Channel(channel).Build()
	if sharded {
		subscribe = n.B().Ssubscribe().Channel(channel).Build()
	}
	listening := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { cancel() })
	err := n.Receive(listening, subscribe, func(rueidis.PubSubMessage) {})
	if errors.Is(err, context.DeadlineExceeded) {
		e.lost = cmp.Or(e.lost, err)
	}
	return deniedFor(err, "command")
}
