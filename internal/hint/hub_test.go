package hint

import (
	"testing"
	"testing/synctest"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// A second listener comes when the subscription is confirmed already.
func TestSubscribe_secondListenerLooksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(redistest.NewMini(t).Client(t), testConfig(false))
		var hints [2]int
		const channel = "redisson_lock__channel:{x}"
		first, _ := h.Subscribe(channel, func(string) { hints[0]++ }, func() { hints[0]++ })
		synctest.Wait()
		second, look := h.Subscribe(channel, func(string) { hints[1]++ }, func() { hints[1]++ })
		synctest.Wait()
		if hints != [2]int{1, 0} || !look {
			t.Errorf("hints %v, and the second is to look: %t; want one for the first, and that", hints, look)
		}
		first.Close()
		second.Close()
		h.Close()
	})
}
