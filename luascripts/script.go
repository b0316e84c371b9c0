package luascripts

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

//go:embed *.lua
var files embed.FS

// script is one embedded file, ready to run.
type script struct {
	name string
	text string
	sha  string
	lua  *rueidis.Lua
}

// load makes a script of <name>.lua, with the functions of the included files,
// which it may use, before it.
func load(name string, includes ...string) *script {
	var text []byte
	for _, file := range append(includes, name) {
		part, err := files.ReadFile(file + ".lua")
		if err != nil {
			panic(err) // a name without its file: the package cannot work
		}
		text = append(text, part...)
	}
	sum := sha1.Sum(text)
	// Not a "retryable" script: the session repeats what it knows to be safe to
	// repeat, and rueidis repeating it unseen would blur what was sent when.
	return &script{name: name, text: string(text), sha: hex.EncodeToString(sum[:]), lua: rueidis.NewLuaScript(string(text))}
}

// exec runs s by its digest, and by its text where the server does not know it.
func (s *script) exec(ctx context.Context, rdb rueidis.Client, keys, args []string) rueidis.RedisResult {
	return s.lua.Exec(ctx, rdb, keys, args)
}

// execReplicated runs s, and if that granted a lock, waits until n replicas have what
// it wrote, for timeout at most. It returns how many have. WAIT counts only what was
// written on its own connection, so both go over one that is theirs alone.
func (s *script) execReplicated(ctx context.Context, rdb rueidis.Client, keys, args []string, n int, timeout time.Duration) (a Acquired, err error) {
	conn, release := rdb.Dedicate()
	defer release()
	count := int64(len(keys))
	reply := conn.Do(ctx, conn.B().Evalsha().Sha1(s.sha).Numkeys(count).Key(keys...).Arg(args...).Build())
	if e, ok := rueidis.IsRedisErr(reply.Error()); ok && e.IsNoScript() {
		reply = conn.Do(ctx, conn.B().Eval().Script(s.text).Numkeys(count).Key(keys...).Arg(args...).Build())
	}
	if a, err = acquired(s, reply); err != nil || a.Verdict != Done {
		return a, err
	}
	have, err := conn.Do(ctx, conn.B().Wait().Numreplicas(int64(n)).Timeout(timeout.Milliseconds()).Build()).ToInt64()
	if reply, refused := rueidis.IsRedisErr(err); refused {
		// The script ran. Only its caller may say what becomes of that.
		return Acquired{}, &WaitError{reply.Error()}
	}
	a.Confirmed = int(have)
	return a, err
}

// WaitError says that a server cannot or may not wait for its replicas. The
// script before it was carried out.
type WaitError struct{ Reply string }

// Error repeats the server's words.
func (e *WaitError) Error() string {
	return "the server cannot wait for replicas (WAIT): " + e.Reply
}

// ReplyError is a reply that no script gives. It means that something between
// us and the server answers for it.
type ReplyError struct {
	Script string
	Reply  string
}

// Error names the script and the reply.
func (e *ReplyError) Error() string {
	return fmt.Sprintf("script %s: unexpected reply %s", e.Script, e.Reply)
}
