package demo

import (
	"context"
	"slices"

	"github.com/leasehold-go/leasehold/lock"
)

const (
	drawers = 4
	draws   = 25 // each
)

// uniqueIDs lets several clients draw numbers from one counter as fast as they
// can. They read it and write it back. These are two commands, so they need a lock.
func uniqueIDs(ctx context.Context, s *stage) error {
	s.out.line("%d clients each take %d IDs from one counter, as fast as they can.", drawers, draws)
	s.out.line("To take an ID: read the counter, then write the counter plus one.")
	clients, err := s.openMany(ctx, drawers)
	if err != nil {
		return err
	}
	drawn := make([][]int, drawers)
	err = each(ctx, drawers, func(ctx context.Context, i int) error {
		counter := clients[i].NewLock("ids")
		for range draws {
			err := lock.Do(ctx, counter, func(ctx context.Context) error {
				id, err := drawID(ctx, s)
				drawn[i] = append(drawn[i], id)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.check(checkIDs(drawn, drawers*draws)...)
	return nil
}

// drawID returns the next ID. It is unique only if no other client draws at the same time.
func drawID(ctx context.Context, s *stage) (int, error) {
	last, err := s.data.number(ctx, "ids")
	if err != nil {
		return 0, err
	}
	id := last + 1
	s.out.progress("ID %d", id)
	return id, s.data.setNumber(ctx, "ids", id)
}

// checkIDs checks the IDs of each client, in the order in which it drew them.
func checkIDs(drawn [][]int, want int) []claim {
	growing := true
	for _, ids := range drawn {
		growing = growing && slices.IsSorted(ids)
	}
	all := slices.Sorted(slices.Values(slices.Concat(drawn...)))
	different := slices.Compact(slices.Clone(all))
	gaps, last := 0, 0
	for _, id := range different {
		gaps += id - last - 1
		last = id
	}
	return []claim{
		claimf(len(all) == want, "%d of %d IDs taken", len(all), want),
		claimf(len(different) == len(all), "%d duplicates", len(all)-len(different)),
		claimf(gaps == 0, "%d gaps from 1 to %d", gaps, last),
		claimf(growing, "the IDs of every client increased"),
	}
}
