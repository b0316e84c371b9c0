//go:build linux

package chaos_test

import (
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// record is one hold, in a file that the process maps. What was written there outlives the
// process, however it ends, and costs no system call. Times are by history.Monotonic. Of a latch or a wait group, a record can be
// another call: the letters at Side say which, and what the times are then. Workers of older versions write it, too (TestUpgrade).
type record struct {
	Call      int64 // before the call of Lock
	Queued    int64 // fair: when Redis had refused the call, if it did
	Granted   int64 // after the call; 0 if the record is not used
	Until     int64 // the end of the promise, as it was then
	Look      int64 // before the latest look that found the hold valid
	LookUntil int64 // the end of the promise by that look
	Release   int64 // before the call of Unlock
	Released  int64 // after it
	Token     uint64
	Owner     int64 // the number in the owner string
	One       int64 // read: the number that tells this reader from others that share its hold
	Goroutine int32
	Place     int16
	Permits   int16
	Side      byte // 'r' or 'w' of a read/write lock; a call of a latch or a wait group
	Outcome   byte // of Unlock
	Flags     byte
	_         byte
	_         [28]byte
}

// What Unlock said.
const (
	outcomeNone    = iota // it was not called, or did not return
	outcomeOK             // the hold was given back
	outcomeExpired        // lock.ErrLost, as the lease ran out
	outcomeGone           // lock.ErrLost, as the server said so
	outcomeUnknown        // Redis did not confirm
)

// Flags.
const (
	flagReentry  = 1 << iota
	flagTry      // by TryLock
	flagSeenLost // a look found the hold over
	flagFixed    // with a fixed lease, which is the longest
	flagMulti    // it is one of several locks that were taken at once
	flagLate     // a look found the hold valid after the end of its promise
	flagFails    // wait group: the worker says that it is not done
	flagUnsure   // latch: a call had no answer, so a copy of it may come late
)

// The calls of a latch and a wait group that are no holds.
const (
	callSet   = 's' // latch: from Call to Granted, TrySetCount made the latch
	callPart  = 'p' // latch: from Call to Look, with the calls that repeat it, a part was counted; Release is 0 while a call is under way
	callWait  = 'w' // from Call to Granted, Wait returned without an error
	callNone  = 'u' // from Call to Granted, the answer was that nothing is known of it, or that it was deleted
	callNamed = 'n' // wait group: from Call to Granted, Wait named Owner as lost
	callDrop  = 'd' // wait group: at Call, Dismiss of Owner was called
)

// calls are their names.
var calls = map[byte]string{callSet: "TrySetCount", callPart: "CountDownOnce", callWait: "Wait", callNone: "unknown", callNamed: "called lost", callDrop: "Dismiss"}

// isHold reports whether the record counts as an acquisition of a place of that kind: for a latch, the waits that it ended.
func (r record) isHold(kind string) bool {
	switch kind {
	case "latch":
		return r.Side == callWait
	case "waitgroup":
		return r.Side == 0
	}
	return true
}

// recordSize is the size of a record.
const recordSize = int(unsafe.Sizeof(record{}))

// mostRecords is how many records a process writes; then it acquires no more locks.
const mostRecords = 3_000_000

// recorder hands out the records of a file.
type recorder struct {
	records []record
	next    atomic.Int64
}

func newRecorder(name string) (*recorder, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := mostRecords * recordSize
	if err := f.Truncate(int64(size)); err != nil { // sparse: what is not written takes no room
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &recorder{records: unsafe.Slice((*record)(unsafe.Pointer(&b[0])), mostRecords)}, nil
}

// full reports whether there is no room.
func (r *recorder) full() bool { return r.next.Load() > mostRecords-1000 }

// add writes one.
func (r *recorder) add(one record) *record {
	to := &r.records[r.next.Add(1)-1]
	*to = one
	return to
}

// readRecords returns the records of a file, whose process has ended.
func readRecords(name string) (all []record, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := mostRecords * recordSize
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.Size() < int64(size) {
		return nil, fmt.Errorf("%s: not begun: %w", name, fs.ErrNotExist)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	mapped := unsafe.Slice((*record)(unsafe.Pointer(&b[0])), mostRecords)
	// A process that was killed can have left out one record for each goroutine.
	for i, empty := 0, 0; i < len(mapped) && empty < 100; i++ {
		if mapped[i].Granted == 0 {
			empty++
			continue
		}
		empty = 0
		all = append(all, mapped[i])
	}
	return all, unix.Munmap(b)
}
