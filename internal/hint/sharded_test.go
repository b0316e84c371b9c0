package hint

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

// A cluster has sharded Pub/Sub if it answers, and has not if it refuses to. Nobody else is asked.
func TestSharded(t *testing.T) {
	for name, c := range map[string]struct {
		mode  rueidis.ClientMode
		says  string
		want  bool
		asked int
	}{
		"it knows it":  {rueidis.ClientModeCluster, "*0\r\n", true, 1},
		"it refuses":   {rueidis.ClientModeCluster, "-ERR Unknown PUBSUB subcommand\r\n", false, 1},
		"one server":   {rueidis.ClientModeStandalone, "*0\r\n", false, 0},
		"by sentinels": {rueidis.ClientModeSentinel, "*0\r\n", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.mode, false, []string{"a:1"}, func(w *world) {
				n := w.nodes["a:1"]
				n.answers(func(string) string { return c.says })
				got, err := Sharded(w.Context(), w.rdb, timeout)
				if got != c.want || err != nil {
					t.Errorf("%v, %v, want %v", got, err, c.want)
				}
				is(t, "questions", n.asked("PUBSUB SHARDNUMSUB"), c.asked)
			})
		})
	}
}

// dialling is a client that does not come back, as one that dials does not look at its context.
type dialling struct {
	*client
	over chan struct{}
}

func (d dialling) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	<-d.over
	return rueidis.RedisResult{}
}

// Without an answer it is not known whether messages go by sharded Pub/Sub. That is an error, at the end of the time-out or of the context.
func TestSharded_noAnswer(t *testing.T) {
	inBubble(t, rueidis.ClientModeCluster, false, []string{"a:1"}, func(w *world) {
		rdb := dialling{w.rdb.(*client), w.over}
		start := time.Now()
		_, err := Sharded(w.Context(), rdb, timeout)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != timeout {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithCancel(w.Context())
		time.AfterFunc(time.Second, cancel)
		start = time.Now()
		_, err = Sharded(ctx, rdb, timeout)
		if took := time.Since(start); !errors.Is(err, context.Canceled) || took != time.Second {
			t.Errorf("%v after %v", err, took)
		}
		synctest.Wait()
	})
}
