package locktest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leasehold-go/leasehold/bloom"
	"github.com/leasehold-go/leasehold/client"
)

type filterMaker = func(name string) Filter

// filtering returns a harness of filters that wrap has changed.
func filtering(wrap func(filterMaker) filterMaker) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) filterMaker {
		return wrap(func(name string) Filter { return c.NewBloomFilter(name) })
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{filter: &FilterHarness{New: of(a), Other: of(b)}}, RWHarness{}
	}
}

func TestFilterRules(t *testing.T) {
	t.Parallel()
	keeps(t, filterRules, filtering(func(mk filterMaker) filterMaker { return mk }))
}

// wrongFilter is a filter with some incorrect methods.
type wrongFilter struct {
	Filter
	init     func(ctx context.Context, f Filter, n uint64, p float64) (bool, error)
	add      func(ctx context.Context, f Filter, elements [][]byte) (int, error)
	contains func(ctx context.Context, f Filter, elements [][]byte) ([]bool, error)
	delete   func(ctx context.Context, f Filter) error
}

func (w wrongFilter) Init(ctx context.Context, n uint64, p float64) (bool, error) {
	if w.init != nil {
		return w.init(ctx, w.Filter, n, p)
	}
	return w.Filter.Init(ctx, n, p)
}

func (w wrongFilter) Add(ctx context.Context, elements ...[]byte) (int, error) {
	if w.add != nil {
		return w.add(ctx, w.Filter, elements)
	}
	return w.Filter.Add(ctx, elements...)
}

func (w wrongFilter) Contains(ctx context.Context, elements ...[]byte) ([]bool, error) {
	if w.contains != nil {
		return w.contains(ctx, w.Filter, elements)
	}
	return w.Filter.Contains(ctx, elements...)
}

func (w wrongFilter) Delete(ctx context.Context) error {
	if w.delete != nil {
		return w.delete(ctx, w.Filter)
	}
	return w.Filter.Delete(ctx)
}

func TestFilterRules_canBeBroken(t *testing.T) {
	t.Parallel()
	with := func(w wrongFilter) func(a, b *client.Client) (Harness, RWHarness) {
		return filtering(func(mk filterMaker) filterMaker {
			return func(name string) Filter {
				w := w
				w.Filter = mk(name)
				return w
			}
		})
	}
	trimmed := func(elements [][]byte) (all [][]byte) {
		for _, e := range elements {
			all = append(all, bytes.TrimRight(e, "0123456789"))
		}
		return all
	}
	testBroken(t, filterRules, []wrong{
		{"every handle has a filter of its own", filtering(func(mk filterMaker) filterMaker {
			return func(string) Filter { return mk(fmt.Sprint("own-", rand.Uint64())) }
		}), map[string]string{
			"filter never made": "not initialized",
			"filter made once":  "made twice: true",
			"no false negative": "not initialized",
		}},
		{"without a filter nothing is found", with(wrongFilter{
			contains: func(ctx context.Context, f Filter, elements [][]byte) ([]bool, error) {
				found, err := f.Contains(ctx, elements...)
				if err != nil {
					return make([]bool, len(elements)), nil
				}
				return found, nil
			},
		}), map[string]string{
			"filter never made":     "error <nil>",
			"bad parameters":        "error <nil>",
			"cancelled filter call": "error <nil>",
		}},
		{"other parameters are no error", with(wrongFilter{
			init: func(ctx context.Context, f Filter, n uint64, p float64) (bool, error) {
				created, _ := f.Init(ctx, n, p)
				return created, nil
			},
		}), map[string]string{
			"filter made once": "error <nil>",
			"bad parameters":   "error <nil>",
		}},
		{"each add forgets the last element", with(wrongFilter{
			add: func(ctx context.Context, f Filter, elements [][]byte) (int, error) {
				return f.Add(ctx, elements[:len(elements)-1]...)
			},
		}), map[string]string{
			"no false negative": "is not found",
			"many adders":       "is not found",
			"made anew":         "is not found",
		}},
		{"elements are cut", with(wrongFilter{
			add: func(ctx context.Context, f Filter, elements [][]byte) (int, error) {
				return f.Add(ctx, trimmed(elements)...)
			},
			contains: func(ctx context.Context, f Filter, elements [][]byte) ([]bool, error) {
				return f.Contains(ctx, trimmed(elements)...)
			},
		}), map[string]string{
			"added twice": "elements were new, want 100",
		}},
		{"everything is found", with(wrongFilter{
			contains: func(ctx context.Context, f Filter, elements [][]byte) ([]bool, error) {
				found, err := f.Contains(ctx, elements...)
				for i := range found {
					found[i] = true
				}
				return found, err
			},
		}), map[string]string{
			"few false positives": "1000 of 1000 elements are found",
		}},
		{"Delete does nothing", with(wrongFilter{
			delete: func(context.Context, Filter) error { return nil },
		}), map[string]string{
			"filter never made": "error <nil>",
			"made anew":         bloom.ErrConfigMismatch.Error(),
		}},
	})
}
