package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/bloom"
)

const (
	pages    = 2000
	crawlers = 2
	falsely  = 0.03 // configured rate of false positives
	unknown  = 6000 // number of pages to check that were not added
)

// crawlReport is the result of the scene.
type crawlReport struct {
	added, again int     // pages that were new, and pages that were not
	forgotten    int     // added pages that the filter does not contain
	falsely      float64 // measured rate of false positives
	bits         uint64
	other, lost  error // errors of a crawler with different parameters, and of one whose filter was deleted
}

// crawl lets crawlers share the set of visited pages in a Bloom filter.
func crawl(ctx context.Context, s *stage) error {
	s.out.line("%d crawlers share a Bloom filter of visited pages: %d pages, %.0f %% false positives.", crawlers, pages, 100*falsely)
	report, err := playCrawl(ctx, s)
	if err != nil {
		return err
	}
	s.check(checkCrawl(report)...)
	return nil
}

func playCrawl(ctx context.Context, s *stage) (r crawlReport, err error) {
	clients, err := s.openMany(ctx, crawlers)
	if err != nil {
		return r, err
	}
	var filters []*bloom.Filter
	for _, c := range clients {
		f := c.NewBloomFilter("seen")
		if _, err := f.Init(ctx, pages, falsely); err != nil {
			return r, err
		}
		filters = append(filters, f)
	}
	added := make([]int, crawlers)
	const atOnce = 100
	err = each(ctx, crawlers, func(ctx context.Context, i int) (err error) {
		for from := i * pages / crawlers; from < (i+1)*pages/crawlers && err == nil; from += atOnce {
			var n int
			n, err = filters[i].Add(ctx, addresses("https://example.com/", from, atOnce)...)
			added[i] += n
			s.out.progress("%d pages", from)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	for _, n := range added {
		r.added += n
	}
	r.again = pages - r.added
	count := func(f *bloom.Filter, site string, n int) (found int, err error) {
		for from := 0; from < n; from += atOnce {
			there, err := f.Contains(ctx, addresses(site, from, atOnce)...)
			if err != nil {
				return 0, err
			}
			for _, is := range there {
				if is {
					found++
				}
			}
		}
		return found, nil
	}
	known, err := count(filters[1], "https://example.com/", pages)
	if err != nil {
		return r, err
	}
	r.forgotten = pages - known
	found, err := count(filters[0], "https://example.org/", unknown)
	if err != nil {
		return r, err
	}
	r.falsely = float64(found) / unknown
	config, err := filters[0].Config(ctx)
	if err != nil {
		return r, err
	}
	r.bits = config.Size
	_, r.other = clients[1].NewBloomFilter("seen").Init(ctx, 10*pages, falsely)
	if err := filters[0].Delete(ctx); err != nil {
		return r, err
	}
	_, r.lost = filters[1].Contains(ctx, addresses("https://example.com/", 0, 1)...)
	return r, nil
}

// addresses returns the addresses of n pages of a site.
func addresses(site string, from, n int) (all [][]byte) {
	for i := range n {
		all = append(all, fmt.Appendf(nil, "%s%d", site, from+i))
	}
	return all
}

func checkCrawl(r crawlReport) []claim {
	return []claim{
		claimf(r.forgotten == 0, "%d pages in %d bytes, and %d false negatives, whichever crawler added them", pages, r.bits/8, r.forgotten),
		claimf(r.falsely > falsely/3 && r.falsely < falsely*1.5, "of %d pages that were not added, %.2f %% are false positives; configured are %.0f %%", unknown, 100*r.falsely, 100*falsely),
		claimf(r.again < pages/20, "%d of %d pages were skipped as false positives", r.again, pages),
		claimf(errors.Is(r.other, bloom.ErrConfigMismatch), "a crawler with different parameters fails: %v", r.other),
		claimf(errors.Is(r.lost, bloom.ErrNotInitialized), "a crawler whose filter was deleted fails: %v", r.lost),
	}
}
