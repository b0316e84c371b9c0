package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold/bloom"
)

// Filter is what [RunFilter] needs of a Bloom filter. *bloom.Filter and *bloom.Sharded implement
// it.
type Filter interface {
	Init(ctx context.Context, n uint64, p float64) (created bool, err error)
	Add(ctx context.Context, elements ...[]byte) (added int, err error)
	Contains(ctx context.Context, elements ...[]byte) ([]bool, error)
	Count(ctx context.Context) (int64, error)
	Delete(ctx context.Context) error
}

// FilterHarness creates the filters that [RunFilter] tests.
type FilterHarness struct {
	// New returns a handle of the filter called name, always of the same client.
	New func(name string) Filter

	// Other returns a handle of another client on the same server, as another process would.
	Other func(name string) Filter
}

// RunFilter tests every rule of a Bloom filter, each in a subtest named after it.
//
//	locktest.RunFilter(t, locktest.FilterHarness{
//		New:   func(name string) locktest.Filter { return a.NewBloomFilter(name) },
//		Other: func(name string) locktest.Filter { return b.NewBloomFilter(name) },
//	})
func RunFilter(t *testing.T, h FilterHarness) {
	try(t, filterRules, Harness{filter: &h}, RWHarness{})
}

// filterRules are in the order of a filter's life cycle.
var filterRules = []rule{
	{name: "filter never made", says: "without Init every call fails with ErrNotInitialized, and Delete succeeds", test: filterNotInitialized},
	{name: "filter made once", says: "Init makes a filter once; the same parameters again are no error, and others are ErrConfigMismatch", test: filterInitializedOnce},
	{name: "no false negative", says: "an element that was added is found by either client", test: noFalseNegative},
	{name: "few false positives", says: "of the elements that were never added, about the promised share is found", test: fewFalsePositives},
	{name: "added twice", says: "an element that is added again counts once", test: addedTwice},
	{name: "made anew", says: "a handle finds what was added after the filter was deleted and made with other parameters", test: filterInitializedAgain},
	{name: "bad parameters", says: "parameters that no filter can have are an error, and make none", test: badParameters},
	{name: "cancelled filter call", says: "a call whose context is over returns the error of the context", test: canceledFilterCall},
	{name: "many adders", says: "under contention of two clients every element is found", test: manyAdders},
}

// filters returns a handle of the trial's filter for each client.
func (t *trial) filters() (a, b Filter) {
	return t.h.filter.New(t.lock), t.h.filter.Other(t.lock)
}

// mustInit creates the filter.
func (t *trial) mustInit(f Filter, n uint64, p float64) {
	t.Helper()
	if created, err := f.Init(t.ctx, n, p); !created || err != nil {
		t.fatal("init: %v, error %v", created, err)
	}
}

// mustAdd adds elements, and fails unless all of them are new.
func (t *trial) mustAdd(f Filter, elements ...[]byte) {
	t.Helper()
	if n, err := f.Add(t.ctx, elements...); err != nil || n > len(elements) {
		t.broken("%d of %d elements are added, error %v", n, len(elements), err)
	}
}

// mustFind fails unless each of filters contains all elements.
func (t *trial) mustFind(elements [][]byte, filters ...Filter) {
	t.Helper()
	for _, f := range filters {
		found, err := f.Contains(t.ctx, elements...)
		if err != nil || len(found) != len(elements) {
			t.broken("%d answers about %d elements, error %v", len(found), len(elements), err)
			return
		}
		for i, is := range found {
			if !is {
				t.broken("the element %.50q is not found", elements[i])
				return
			}
		}
	}
}

// elements returns n different elements for this kind.
func elements(kind string, n int) (all [][]byte) {
	for i := range n {
		all = append(all, fmt.Appendf(nil, "%s %d", kind, i))
	}
	return all
}

func filterNotInitialized(t *trial) {
	a, b := t.filters()
	absent := func() {
		t.Helper()
		for _, f := range []Filter{a, b} {
			_, err := f.Add(t.ctx, []byte("x"))
			t.named(err, bloom.ErrNotInitialized)
			_, err = f.Contains(t.ctx, []byte("x"))
			t.named(err, bloom.ErrNotInitialized)
			_, err = f.Count(t.ctx)
			t.named(err, bloom.ErrNotInitialized)
		}
	}
	absent()
	if err := b.Delete(t.ctx); err != nil {
		t.broken("delete: %v", err)
	}
	absent()
	t.mustInit(a, 100, 0.01)
	t.mustAdd(b, []byte("x"))
	if err := b.Delete(t.ctx); err != nil {
		t.broken("delete: %v", err)
	}
	absent()
}

func filterInitializedOnce(t *trial) {
	a, b := t.filters()
	t.mustInit(a, 1000, 0.01)
	t.mustAdd(a, []byte("x"))
	for _, f := range []Filter{a, b} {
		if created, err := f.Init(t.ctx, 1000, 0.01); created || err != nil {
			t.broken("made twice: %v, error %v", created, err)
		}
		for n, p := range map[uint64]float64{1000: 0.02, 2000: 0.01} {
			created, err := f.Init(t.ctx, n, p)
			var e *bloom.ConfigError
			if t.named(err, bloom.ErrConfigMismatch); created || !errors.As(err, &e) {
				t.broken("made with other parameters: %v, error %v", created, err)
			}
		}
	}
	t.mustFind([][]byte{[]byte("x")}, a, b)
}

func noFalseNegative(t *trial) {
	a, b := t.filters()
	t.mustInit(b, 1000, 0.01)
	odd := [][]byte{{}, {0}, []byte("\xff\xfe"), []byte(strings.Repeat("long ", 2000)), []byte("ü")}
	all := append(odd, elements("there", 500)...)
	for i, e := range odd {
		t.mustAdd([]Filter{a, b}[i%2], e)
		t.mustFind([][]byte{e}, a, b)
	}
	t.mustAdd(a, all[len(odd):300]...)
	t.mustAdd(b, all[300:]...)
	t.mustFind(all, a, b)
}

func fewFalsePositives(t *trial) {
	a, b := t.filters()
	t.mustInit(a, 300, 0.03)
	for some := range slices.Chunk(elements("there", 300), 50) {
		t.mustAdd(a, some...)
	}
	found, err := b.Contains(t.ctx, elements("absent", 1000)...)
	n := 0
	for _, is := range found {
		if is {
			n++
		}
	}
	if err != nil || len(found) != 1000 || n > 80 { // 35 are expected
		t.broken("%d of %d elements are found that were never added, error %v", n, len(found), err)
	}
}

func addedTwice(t *trial) {
	a, b := t.filters()
	t.mustInit(a, 1000, 1e-6)
	all := elements("there", 100)
	for i, f := range []Filter{a, a, b} {
		n, err := f.Add(t.ctx, all...)
		if want := max(0, 1-i) * len(all); n != want || err != nil {
			t.broken("%d of %d elements were new, want %d; error %v", n, len(all), want, err)
		}
	}
	if n, err := b.Count(t.ctx); err != nil || n < 80 || n > 120 {
		t.broken("%d elements are there, want about 100; error %v", n, err)
	}
}

func filterInitializedAgain(t *trial) {
	a, b := t.filters()
	t.mustInit(a, 100, 0.01)
	t.mustAdd(a, []byte("first")) // now a has cached the parameters
	if err := b.Delete(t.ctx); err != nil {
		t.broken("delete: %v", err)
	}
	t.mustInit(b, 5000, 0.001)
	t.mustAdd(b, elements("by b", 50)...)
	t.mustAdd(a, elements("by a", 50)...)
	t.mustFind(append(elements("by a", 50), elements("by b", 50)...), a, b)
}

func badParameters(t *trial) {
	a, b := t.filters()
	for _, p := range []float64{0, 1, -1, 2} {
		_, err := a.Init(t.ctx, 100, p)
		t.named(err, nil)
	}
	for _, n := range []uint64{0, 1 << 63} {
		_, err := a.Init(t.ctx, n, 0.01)
		t.named(err, nil)
	}
	_, err := b.Contains(t.ctx, []byte("x"))
	t.named(err, bloom.ErrNotInitialized)
}

func canceledFilterCall(t *trial) {
	a, _ := t.filters()
	t.mustInit(a, 100, 0.01)
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	_, err := a.Add(over, []byte("x"))
	t.named(err, context.Canceled)
	_, err = a.Contains(over, []byte("x"))
	t.named(err, context.Canceled)
}

func manyAdders(t *trial) {
	const callers, each = 8, 50
	a, b := t.filters()
	var wg sync.WaitGroup
	for i := range callers {
		f, other := a, b
		if i%2 == 1 {
			f, other = b, a
		}
		wg.Go(func() {
			if _, err := f.Init(t.ctx, callers*each, 0.01); err != nil {
				t.broken("init: %v", err)
			}
			for n, e := range elements(fmt.Sprint("of ", i), each) {
				if t.mustAdd(f, e); n%10 == 0 {
					t.mustFind([][]byte{e}, other)
				}
			}
		})
	}
	wg.Wait()
	for i := range callers {
		t.mustFind(elements(fmt.Sprint("of ", i), each), a, b)
	}
}
