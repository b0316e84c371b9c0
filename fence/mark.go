package fence

import (
	"sync"
	"sync/atomic"
)

// Mark is a guard for data that lives in one process. It stores the largest token seen, in memory.
// The zero value has seen none. It is safe for concurrent use, and must not be copied.
//
// It is lost with the process. If the data outlives the process, raise the mark to the largest
// known token before the first write. Alternatively, use a guard that lives with the data.
type Mark struct {
	highest atomic.Uint64 // never decreases

	mu sync.Mutex // held while a function of Do runs

	name string // set once, by Marks
}

// Check raises the mark to token, or fails with [ErrStale] if a larger one was seen. It does not
// wait.
//
// On its own it rejects stale requests early, and is not a guard. A newer holder can write between
// the check and the write. To exclude that, write in [Mark.Do].
func (m *Mark) Check(token uint64) error { return wrap("fence", m.name, m.raise(token)) }

func (m *Mark) raise(token uint64) error {
	for {
		highest := m.highest.Load()
		if err := Check(token, highest); err != nil {
			return err
		}
		if m.highest.CompareAndSwap(highest, token) {
			return nil
		}
	}
}

// Do calls write unless a larger token was seen, and returns the error of write. Only one function
// runs under a Mark at a time. No function with a smaller token runs after, or at the same time as,
// one with a larger token. If write fails, the mark stays raised. A write that calls Do of the same
// Mark deadlocks.
func (m *Mark) Do(token uint64, write func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.Check(token); err != nil {
		return err
	}
	return write()
}

// Highest returns the largest token seen, or 0 before the first.
func (m *Mark) Highest() uint64 { return m.highest.Load() }

// Marks has the marks of many resources, by name. The zero value has none. It is safe for
// concurrent use, and must not be copied.
//
// A mark stays until [Marks.Forget], with about 100 bytes and the length of its name. A mark that
// was dropped because of its age, or to free memory, would admit a stale holder. Check that a
// resource exists before you request its mark. Otherwise a client that can name resources can fill
// the memory.
type Marks struct {
	mu sync.RWMutex
	of map[string]*Mark // guarded by mu
}

// Of returns the mark of a resource, the same on every call.
func (m *Marks) Of(name string) *Mark {
	m.mu.RLock()
	mark := m.of[name]
	m.mu.RUnlock()
	if mark != nil {
		return mark
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark = m.of[name]; mark == nil {
		if m.of == nil {
			m.of = make(map[string]*Mark)
		}
		mark = &Mark{name: name}
		m.of[name] = mark
	}
	return mark
}

// Forget removes the mark of a resource that is gone permanently. If the resource is created again,
// the first token is accepted, whatever it is.
func (m *Marks) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, name)
}

// Len returns the number of resources that have a mark.
func (m *Marks) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.of)
}
