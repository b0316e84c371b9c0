//go:build linux

package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/semaphore"
)

// Semaphores are held, waited for and released while their slots are migrated to another node and back: no hold is
// lost, no permit is granted twice, and in the end all permits are free.
func TestSemaphore_movingSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	a, b := ours(t, c.Client(t)), ours(t, c.Client(t))
	const total = 2
	stop := keepMoving(t, c, "gpus", "{gpus}:timeout", "leasehold_semaphore_queue:{gpus}", "leasehold_semaphore_alive:{gpus}")
	results := make(chan error)
	for i := range 6 {
		from := a
		if i%2 == 1 {
			from = b
		}
		go func() {
			results <- func() error {
				for range 60 {
					h, err := from.NewSemaphore("gpus", total).Lock(t.Context())
					if err != nil {
						return err
					}
					time.Sleep(5 * time.Millisecond)
					if err := h.Err(); err != nil {
						return err
					}
					if err := h.Unlock(t.Context()); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 6 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	stop()
	var state semaphore.State
	until(t, func() bool {
		var err error
		state, err = a.NewSemaphore("gpus", total).Inspect(t.Context())
		return err == nil && state.Free == total && len(state.Waiters) == 0
	})
	if fmt.Sprint(state.Permits) != "2" {
		t.Errorf("%+v", state)
	}
}
