package command

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

// Whatever happens to the copies of calls, in any order: none takes effect after its call has
// returned.
func TestDated_histories(t *testing.T) {
	const within = 3 * time.Second
	var late, done, failed int
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			began, drift := time.Now(), random.Float64()*0.02-0.01
			clock := func() int64 { // of the server
				return began.Add(time.Hour + time.Duration(float64(time.Since(began))*(1+drift))).UnixMilli()
			}
			upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			var copies sync.WaitGroup
			var mu sync.Mutex // also of late
			for range 20 {
				returned := false // guarded by mu
				d, start := New(nil, Config{Timeout: within}).Dated(), time.Now()
				apply := func(before int64) (now int64) {
					mu.Lock()
					defer mu.Unlock()
					switch now = clock(); {
					case now >= before && returned:
						late++
						return now
					case now >= before:
						return now
					case returned:
						t.Errorf("seed %d: a copy takes effect after its call has returned", seed)
					}
					return 0
				}
				fates := random.Perm(5)[:1+random.IntN(5)] // what may happen
				pending, err := false, error(nil)          // pending: a copy that may change something has no reply
				for time.Since(start) < within {
					err = d.Send(t.Context(), func(before int64) (int64, error) {
						time.Sleep(upTo(300 * time.Millisecond))
						switch fates[random.IntN(len(fates))] {
						case 0: // the reply is lost
							apply(before)
						case 1: // it arrives late
							after := upTo(5 * time.Second)
							copies.Go(func() { time.Sleep(after); apply(before) })
						case 2: // the command is lost
							return 0, retry.Undialled{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
						default:
							return apply(before), nil
						}
						pending = pending || before > 0
						return 0, io.EOF
					})
					if err == nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				replied := time.Since(start)
				d.Over(t.Context())
				if took := time.Since(start); took > max(replied, min(replied+copyLives, within)) || !pending && took > replied {
					t.Errorf("seed %d: returned after %v; %v, the last reply came after %v", seed, took, err, replied)
				}
				mu.Lock()
				returned = true
				mu.Unlock()
				if err == nil {
					done++
				} else {
					failed++
				}
			}
			copies.Wait()
		})
	}
	if late == 0 || done == 0 || failed == 0 {
		t.Errorf("the histories are too tame: %d late copies, %d calls that were done and %d that failed", late, done, failed)
	}
}

// A call whose caller has left, or whose client closes, sends nothing more. Over does not wait longer
// than its caller.
func TestDated_callerLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		d, sent := New(nil, Config{Timeout: time.Minute}).Dated(), 0
		err := d.Send(ctx, func(int64) (int64, error) {
			sent++
			leave()
			return int64(2 - sent), nil // the second copy would be executed
		})
		if !errors.Is(err, context.Canceled) || sent != 1 {
			t.Errorf("%v after %d copies", err, sent)
		}
		s := New(nil, Config{Timeout: time.Minute})
		d, sent = s.Dated(), 0
		err = d.Send(t.Context(), func(int64) (int64, error) {
			sent++
			if sent == 1 {
				s.Shut()
			}
			return int64(2 - sent), nil
		})
		if !errors.Is(err, lock.ErrClosed) || sent != 1 {
			t.Errorf("%v after %d copies", err, sent)
		}
		d = New(nil, Config{Timeout: time.Minute}).Dated()
		ctx, leave = context.WithTimeout(t.Context(), copyLives/2)
		defer leave()
		_ = d.Send(ctx, func(before int64) (int64, error) {
			if before > 0 {
				return 0, io.EOF
			}
			return 1, nil
		})
		start := time.Now()
		if d.Over(ctx); time.Since(start) != copyLives/2 {
			t.Errorf("it waited for %v", time.Since(start))
		}
	})
}

// If every copy comes too late, the call ends when its time has passed.
func TestDated_slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, start := New(nil, Config{Timeout: 3 * time.Second}).Dated(), time.Now()
		err := d.Send(t.Context(), func(before int64) (int64, error) {
			time.Sleep(copyLives)
			return time.Now().UnixMilli(), nil
		})
		if !errors.Is(err, errOutdated) || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if f := retry.FaultOf(err); !f.Temporary {
			t.Errorf("%+v", f)
		}
	})
}
