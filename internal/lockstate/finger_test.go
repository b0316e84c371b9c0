package lockstate

import (
	"hash/maphash"
	"reflect"
	"slices"
	"time"
	"unsafe"
)

// finger computes the fingerprint of a state, so that histories that lead to the same state are
// explored once. Names and pointers are replaced by the order in which they occur, times by their
// distance from now in milliseconds. Counters, which are of type uint32, are ignored.
type finger struct {
	buf   []byte
	seen  map[met]byte
	names map[string]byte
	now   time.Time
}

type met struct {
	at unsafe.Pointer
	is reflect.Type
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	taleType     = reflect.TypeFor[tale]()
	ordinalsType = reflect.TypeFor[ordinals]()
	seed         = maphash.MakeSeed()
)

// of returns the fingerprint of the state that v points to.
func (f *finger) of(v any, now time.Time) uint64 {
	if f.seen == nil {
		f.seen, f.names = make(map[met]byte), make(map[string]byte)
	}
	clear(f.seen)
	clear(f.names)
	f.buf, f.now = f.buf[:0], now
	f.add(reflect.ValueOf(v))
	return maphash.Bytes(seed, f.buf)
}

func (f *finger) put(b byte) { f.buf = append(f.buf, b) }

func (f *finger) add(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			f.put(0)
			return
		}
		m := met{v.UnsafePointer(), v.Type()}
		if n, ok := f.seen[m]; ok {
			f.put(n)
			return
		}
		f.seen[m] = byte(len(f.seen) + 1)
		f.put(255)
		f.add(v.Elem())
	case reflect.Struct:
		switch v.Type() {
		case taleType, ordinalsType:
			return
		case timeType:
			f.time(*(*time.Time)(v.Addr().UnsafePointer()))
			return
		}
		for i := range v.NumField() {
			f.add(v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		f.put(byte(v.Len()))
		for i := range v.Len() {
			f.add(v.Index(i))
		}
	case reflect.Map:
		if m, ok := owners(v); ok {
			f.owners(m)
		}
	case reflect.String:
		f.name(v.String())
	case reflect.Bool:
		f.put(bit(v.Bool()))
	case reflect.Int, reflect.Int32, reflect.Int64:
		f.buf = append(f.buf, byte(v.Int()), byte(v.Int()>>20))
	case reflect.Uint8:
		f.put(byte(v.Uint()))
	case reflect.Uint64: // tokens and owners
		f.put(bit(v.Uint() != 0))
	case reflect.Chan:
		f.put(byte(v.Len()))
	case reflect.Interface:
		f.put(bit(v.IsNil()))
	}
}

func owners(v reflect.Value) (map[uint64]*Owner, bool) {
	if v.Type() != reflect.TypeFor[map[uint64]*Owner]() || v.IsNil() {
		return nil, false
	}
	return *(*map[uint64]*Owner)(v.Addr().UnsafePointer()), true
}

func (f *finger) owners(m map[uint64]*Owner) {
	var numbers []uint64
	for n := range m {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		f.put(byte(n))
		f.add(reflect.ValueOf(m[n]))
	}
}

func (f *finger) time(at time.Time) {
	if at.IsZero() {
		f.put(0)
		return
	}
	ms := min(max(at.Sub(f.now)/time.Millisecond, -20), 3000)
	f.buf = append(f.buf, 1+byte(ms&127), byte(ms>>7))
	f.put(bit(at.After(f.now)))
}

func (f *finger) name(s string) {
	if s == "" {
		f.put(0)
		return
	}
	n, ok := f.names[s]
	if !ok {
		n = byte(len(f.names) + 1)
		f.names[s] = n
	}
	f.put(n)
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
