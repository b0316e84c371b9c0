package retry

import (
	"errors"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Fault is what an error means for the command that failed. FaultOf is the only function that decides
// it, for every package that sends commands.
type Fault struct {
	Executed  Executed // whether the server may have executed the command
	Temporary bool     // the same command may succeed later, so a call that waits retries
	Lasts     bool     // the condition is temporary but lasts, so a call that does not wait fails without a retry
	Denied    bool     // the server does not accept the user, or the user lacks a permission
	Is        error    // what the error of a single attempt matches; nil for the error itself
}

// Executed reports whether the server may have executed a command.
type Executed uint8

// Unknown is the zero value: an unclassified error has an unknown outcome.
const (
	Unknown Executed = iota
	No
	Yes
)

// String returns "unknown", "no" or "yes".
func (e Executed) String() string { return [...]string{"unknown", "no", "yes"}[e] }

// MayHaveRun reports whether the server may have executed the command.
func (f Fault) MayHaveRun() bool { return f.Executed != No }

// Retries reports whether a call that does not wait retries while it has time.
func (f Fault) Retries() bool { return f.Temporary && !f.Lasts }

// Row is a row of the table of error replies.
type Row struct {
	// Match is the code in capitals, or the part of the message that distinguishes a reply with the
	// code ERR.
	Match string

	// Reply is an example, as sent by a server.
	Reply string

	// When describes when a server sends the reply.
	When string

	Fault
}

// The faults of most rows.
var (
	temporary       = Fault{Executed: No, Temporary: true, Is: lock.ErrUnavailable}
	temporaryUnsure = Fault{Executed: Unknown, Temporary: true, Is: lock.ErrUnavailable}
	lasting         = Fault{Executed: No, Temporary: true, Lasts: true, Is: lock.ErrUnavailable}
	denied          = Fault{Executed: No, Denied: true}
	foreign         = Fault{Executed: No, Is: lock.ErrWrongType}
	final           = Fault{Executed: No}
	finalUnsure     = Fault{Executed: Unknown}
)

// Replies are the error replies of Redis and Valkey. The last row stands for every reply without its
// own row. A proxy can send such a reply after the server executed the command.
//
// A server checks its state only at the first write of a script. A reply that rejects a write
// therefore means that the script has written nothing. Two replies can come later, after a script has
// deleted a key of a slot that is being migrated.
var Replies = []Row{
	// The server cannot serve now.
	{"LOADING", "LOADING Redis is loading the dataset in memory", "the server is starting, or a replica is loading the data of its primary", temporary},
	{"BUSY", "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "another script, function or module command has run for too long", temporary},
	{"NOREPLICAS", "NOREPLICAS Not enough good replicas to write.", "fewer replicas than `min-replicas-to-write` are connected, as happens briefly after every failover", temporary},
	{"READONLY", "READONLY You can't write against a read only replica.", "the server has become a replica", temporary},
	{"MASTERDOWN", "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "the server is a replica that has lost its primary", temporary},
	{"stale replica", "ERR Can not execute the command on a stale replica script: 1b936e, on @user_script:1.", "the same, from a script", temporary},
	{"REDIRECT", "REDIRECT 127.0.0.1:6379", "Valkey: the server has become a replica", temporary},
	{"UNBLOCKED", "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", "the server became a replica while WAIT counted replicas", temporary},
	{"WAIT cannot be used with replica", "ERR WAIT cannot be used with replica instances.", "the server became a replica before WAIT", temporary},
	{"NOSCRIPT", "NOSCRIPT No matching script. Please use EVAL.", "the script cache was flushed; the script is sent again with EVAL", temporary},
	{"Script killed by user", "ERR Error running script: Script killed by user with SCRIPT KILL...", "an operator killed a script that had not written anything", temporary},
	{"max number of clients", "ERR max number of clients reached", "the limit `maxclients` is reached; the server closes the new connection", temporary},
	{"OOM", "OOM command not allowed when used memory > 'maxmemory'.", "the memory limit is reached, and no key can be evicted", lasting},
	{"MISCONF", "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", "the server cannot write to its disk", lasting},

	// The cluster cannot serve now.
	{"MOVED", "MOVED 3999 127.0.0.1:6381", "another node has the slot; a cluster client follows the redirection", temporary},
	{"ASK", "ASK 3999 127.0.0.1:6381", "the slot is being migrated; a cluster client follows the redirection", temporary},
	{"TRYAGAIN", "TRYAGAIN Multiple keys request during rehashing of slot", "the slot is being migrated, and the node lacks some of the keys", temporary},
	{"CLUSTERDOWN", "CLUSTERDOWN The cluster is down", "no node serves the slot, or the cluster has no majority", temporary},
	{"while the cluster is down", "ERR Script attempted to execute a write command while the cluster is down and readonly", "the same, from a script", temporary},
	{"access a slot not served", "ERR Script attempted to access a slot not served", "the same, from a script", temporary},
	{"access a non local key", "ERR Script attempted to access a non local key in a cluster node", "the slot is being migrated, and the key is gone from this node", temporaryUnsure},
	{"during rehashing of the slot", "ERR Unable to execute command 'hset' in script because undeclared keys were accessed during rehashing of the slot", "the slot is being migrated, and a key is gone from this node", temporaryUnsure},

	// Only an operator can change it.
	{"NOAUTH", "NOAUTH Authentication required.", "the server requires a password", denied},
	{"WRONGPASS", "WRONGPASS invalid username-password pair or user is disabled.", "the user or the password is wrong", denied},
	{"invalid password", "ERR invalid password", "the same, before Redis 6", denied},
	{"NOPERM", "NOPERM this user has no permissions to run the 'evalsha' command", "the user lacks a permission", denied},
	{"The user executing the script", "ERR The user executing the script can't run this command or subcommand", "the same, from a script of Redis 6 or 7.0", denied},
	{"ACL failure in script", "ERR ACL failure in script: User app has no permissions to run the 'publish' command", "the same, from a script of Redis 7.2 or Valkey", denied},
	{"DENIED", "DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.", "protected mode: the server closes the new connection", final},
	{"NOPROTO", "NOPROTO unsupported protocol version", "the server does not support the protocol version", final},
	{"WRONGTYPE", "WRONGTYPE Operation against a key holding the wrong kind of value", "the key has another type", foreign},
	{"CROSSSLOT", "CROSSSLOT Keys in request don't hash to the same slot", "the keys are in different slots of a cluster", final},
	{"unknown command", "ERR unknown command 'EVALSHA'", "the command was renamed or disabled, or a proxy does not forward it", final},
	{"command called from", "ERR Unknown Redis command called from script", "the same, for a command called by a script", final},

	// Replies to commands or arguments that this module does not send.
	{"BUSYGROUP", "BUSYGROUP Consumer Group name already exists", "streams", final},
	{"BUSYKEY", "BUSYKEY Target key name already exists.", "RESTORE, MIGRATE", final},
	{"EXECABORT", "EXECABORT Transaction discarded because of previous errors.", "EXEC", final},
	{"INPROG", "INPROG Failover already in progress", "SENTINEL FAILOVER", final},
	{"INVALIDOBJ", "INVALIDOBJ Corrupted HLL object detected", "HyperLogLog", final},
	{"IOERR", "IOERR error or timeout writing to target instance", "MIGRATE", final},
	{"NOGOODSLAVE", "NOGOODSLAVE No suitable replica to promote", "SENTINEL FAILOVER", final},
	{"NOGROUP", "NOGROUP No such consumer group", "streams", final},
	{"NOMASTERLINK", "NOMASTERLINK Can't SYNC while not connected with my master", "replication", final},
	{"NOQUORUM", "NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach the majority and authorize a failover", "SENTINEL CKQUORUM", final},
	{"NOSUB", "NOSUB 'unsubscribe' command executed not in subscribed mode", "Valkey: UNSUBSCRIBE", final},
	{"NOTBUSY", "NOTBUSY No scripts in execution right now.", "SCRIPT KILL", final},
	{"NOTREADY", "NOTREADY Cluster is not ready to migrate slots", "slot migration", final},
	{"UNKILLABLE", "UNKILLABLE Sorry the script already executed write commands against the dataset.", "SCRIPT KILL", final},
	{"ERR", "ERR syntax error", "any other error", finalUnsure},
}

// ProxyReplies are the error replies that proxies send instead of a server's reply, as in their
// sources.
var ProxyReplies = []Row{
	{"upstream failure", "upstream failure", "Envoy: the connection to the server broke, or the server did not reply in time", temporaryUnsure},
	{"no upstream host", "no upstream host", "Envoy: no server is available", temporary},
	{"Connection timed out", "ERR Connection timed out", "a proxy that reports system errors (Twemproxy): the server did not reply", temporaryUnsure},
	{"Connection reset by peer", "ERR Connection reset by peer", "the same: the connection to the server broke", temporaryUnsure},
	{"Connection refused", "ERR Connection refused", "the same: the server cannot be reached", temporaryUnsure},
	{"server connection close", "ERR server connection close", "Predixy: the connection to the server broke", temporaryUnsure},
	{"no server", "ERR no server connection avaliable", "Predixy: no server is available", temporary},
	{"backend conn", "ERR handle response, backend conn reset", "Codis: the connection to the server broke", temporaryUnsure},
}

// codes has the rows that are matched by code, messages those matched by text.
var (
	codes    = make(map[string]*Row)
	messages []*Row
)

func init() {
	for _, table := range [][]Row{Replies, ProxyReplies} {
		for i := range table {
			r := &table[i]
			switch {
			case r.Match == strings.ToUpper(r.Match):
				codes[r.Match] = r
			default:
				messages = append(messages, r)
			}
		}
	}
}

// Reply returns the row of an error reply.
//
// The code need not be the first word. Some servers put another code before an error of a script, and
// servers before Redis 7 keep the dash that marks an error in the protocol. If the first word is a
// code other than ERR, the other words are ignored, because a message can contain the name of a key.
func Reply(text string) Row {
	first, _, _ := strings.Cut(text, " ")
	if r := codes[strings.TrimPrefix(first, "-")]; r != nil && r.Match != "ERR" {
		return *r
	}
	for _, r := range messages {
		if strings.Contains(text, r.Match) {
			return *r
		}
	}
	for word := range strings.FieldsSeq(text) {
		if r := codes[strings.TrimPrefix(word, "-")]; r != nil && r.Match != "ERR" {
			return *r
		}
	}
	return *codes["ERR"]
}

// Temporary reports whether a server that sent this error reply may accept the same command later.
func Temporary(text string) bool { return Reply(text).Temporary }

// Kind is a row of the table of errors that are not replies.
type Kind struct {
	What string // the error
	Fault
	is func(err error) bool
}

// as reports whether err wraps an error of type E.
func as[E error](err error) bool { return errors.As(err, new(E)) }

// Kinds are the errors that are not error replies. The first match applies; the last row matches any
// error.
var Kinds = []Kind{
	{"the leasehold client is closed", Fault{Executed: No, Is: lock.ErrClosed}, func(err error) bool { return errors.Is(err, lock.ErrClosed) }},
	{"the application closed the rueidis client", Fault{Is: lock.ErrClosed}, as[Closed]},
	{"the server or a proxy does not support EVALSHA or EVAL", final, as[*luascripts.UnknownError]},
	{"the script returned an unexpected reply", Fault{Executed: Yes}, as[*luascripts.ReplyError]},
	{"an error of leasehold itself, which a retry would not fix", final, func(err error) bool { var own interface{ Final() }; return errors.As(err, &own) }},
	{"no connection could be opened, so nothing was sent", temporary, as[Undialled]},
	{"no node of the cluster has the slot, so nothing was sent", temporary, func(err error) bool { return errors.Is(err, rueidis.ErrNoSlot) }},
	{"the connection broke, or no reply came within the operation timeout", temporaryUnsure, func(error) bool { return true }},
}

// FaultOf returns what err means for the command that failed with it.
//
// A dial error can belong to a later connection, because rueidis resends a command when its
// ConnLifetime ends. Of the dial errors, only Undialled therefore means that nothing was sent.
// rueidis.ErrNoSlot can follow such a resend, too, as every error reply can: see command.Resent.
func FaultOf(err error) Fault {
	var wait *luascripts.WaitError
	if errors.As(err, &wait) { // the script before WAIT was executed
		f := Reply(wait.Reply).Fault
		if !f.Temporary {
			f = Fault{Is: lock.ErrReplicas}
		}
		f.Executed = Yes
		return f
	}
	var reply *rueidis.RedisError
	if errors.As(err, &reply) {
		f := Reply(reply.Error()).Fault
		if errors.As(err, new(Undialled)) {
			f.Executed = No
		}
		return f
	}
	for _, k := range Kinds {
		if k.is(err) {
			return k.Fault
		}
	}
	panic("the last kind is any error")
}

// Undialled is a dial error of a client that never resends a command, because it has no
// ClientOption.ConnLifetime.
type Undialled struct{ Err error }

func (e Undialled) Error() string { return e.Err.Error() }

// Unwrap returns the dial error.
func (e Undialled) Unwrap() error { return e.Err }

// Closed is the error of a command that found the rueidis client closed.
type Closed struct{ Err error }

func (e Closed) Error() string { return e.Err.Error() }

// Unwrap returns the error of rueidis, which matches rueidis.ErrClosing.
func (e Closed) Unwrap() error { return e.Err }
