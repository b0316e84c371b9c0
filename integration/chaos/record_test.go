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

// record is one hold, in a file that the process maps: written data outlives the process, however it ends, and writing
// requires no system call. Times are by history.Monotonic. For a latch or a wait group, a record can be another call:
// the letters of Side define which, and the meaning of the times. Workers of older versions write records, too
// (TestUpgrade).
type record struct {
	Call      int64 // before the call of Lock
	Queued    int64 // fair: when Redis refused the call, if it did
	Granted   int64 // after the call; 0 if the record is unused
	Until     int64 // Until, as returned by the call
	Look      int64 // before the last check that found the hold valid
	LookUntil int64 // Until, as returned by that check
	Release   int64 // before the call of Unlock
	Released  int64 // after the call of Unlock
	Token     uint64
	Owner     int64 // the number in the owner string
	One       int64 // read: distinguishes this reader from others that share its hold
	Goroutine int32
	Place     int16
	Permits   int16
	Side      byte // 'r' or 'w' for a read/write lock; a call of a latch or a wait group
	Outcome   byte // of Unlock
	Flags     byte
	_         byte
	_         [28]byte
}

// Results of Unlock.
const (
	outcomeNone    = iota // it was not called, or did not return
	outcomeOK             // the hold was released
	outcomeExpired        // lock.ErrLost, because the lease expired
	outcomeGone           // lock.ErrLost, because the server reported it
	outcomeUnknown        // Redis did not confirm
)

// Flags.
const (
	flagReentry  = 1 << iota
	flagTry      // by TryLock
	flagSeenLost // a check found that the hold had ended
	flagFixed    // with a fixed lease, which is the longest
	flagMulti    // it is one of several locks acquired at once
	flagLate     // a check found the hold valid after its Until
	flagFails    // wait group: the worker reports that it is not done
	flagUnsure   // latch: a call got no reply, so a duplicate of it may arrive late
)

// The calls of a latch and a wait group that are not holds.
const (
	callSet   = 's' // latch: from Call to Granted, TrySetCount created the latch
	callPart  = 'p' // latch: from Call to Look, including retries, a part was counted; Release is 0 while a call is in flight
	callWait  = 'w' // from Call to Granted, Wait returned without an error
	callNone  = 'u' // from Call to Granted, the reply was that it does not exist, or was deleted
	callNamed = 'n' // wait group: from Call to Granted, Wait named Owner as lost
	callDrop  = 'd' // wait group: at Call, Dismiss of Owner was called
)

// calls has the names of the calls.
var calls = map[byte]string{callSet: "TrySetCount", callPart: "CountDownOnce", callWait: "Wait", callNone: "unknown", callNamed: "called lost", callDrop: "Dismiss"}

// isHold reports whether the record counts as an acquisition of a place of that type: for a latch, the completed waits.
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

// mostRecords is the maximum number of records of a process, which then acquires no more locks.
const mostRecords = 3_000_000

// recorder allocates the records in a file.
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
	if err := f.Truncate(int64(size)); err != nil { // sparse: unwritten records take up no space
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &recorder{records: unsafe.Slice((*record)(unsafe.Pointer(&b[0])), mostRecords)}, nil
}

// full reports whether there is no more space.
func (r *recorder) full() bool { return r.next.Load() > mostRecords-1000 }

// add writes a record.
func (r *recorder) add(one record) *record {
	to := &r.records[r.next.Add(1)-1]
	*to = one
	return to
}

// readRecords returns the records in a file of a process that has ended.
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
	// A killed process can have left one unwritten record for each goroutine.
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
