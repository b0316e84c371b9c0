package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

const (
	phones = 10
	buyers = 100
	shops  = 4
)

// sale is a line in the books: a phone, and its buyer.
type sale struct{ phone, buyer int }

// flashSale sells a few phones to many buyers, who come to several shops at almost
// the same time. In the first round, the shops use no lock; in the second, they do.
func flashSale(ctx context.Context, s *stage) error {
	s.out.line("%d phones, %d buyers, and %d shops with one client each.", phones, buyers, shops)
	s.out.line("To sell a phone: read the stock, pause, write the stock, record the buyer.")

	books, err := sell(ctx, s, "unlocked", func(ctx context.Context, buyer int) error {
		return buy(ctx, s, "unlocked", buyer)
	})
	if err != nil {
		return err
	}
	s.check(checkUnlockedSale(books)...)

	clients, err := s.openMany(ctx, shops)
	if err != nil {
		return err
	}
	books, err = sell(ctx, s, "locked", func(ctx context.Context, buyer int) error {
		shop := clients[buyer%shops]
		return lock.Do(ctx, shop.NewLock("phones"), func(ctx context.Context) error {
			return buy(ctx, s, "locked", buyer)
		})
	})
	if err != nil {
		return err
	}
	s.check(checkLockedSale(books)...)
	return nil
}

// sell puts the phones on the shelf, lets all buyers in, and returns the books.
func sell(ctx context.Context, s *stage, shelf string, buy func(ctx context.Context, buyer int) error) ([]sale, error) {
	if err := s.data.setNumber(ctx, shelf, phones); err != nil {
		return nil, err
	}
	err := each(ctx, buyers, func(ctx context.Context, buyer int) error {
		if err := sleep(ctx, time.Duration(buyer)*5*time.Millisecond); err != nil {
			return err
		}
		return buy(ctx, buyer)
	})
	if err != nil {
		return nil, err
	}
	return readBooks(ctx, s, shelf)
}

// buy sells the next phone to buyer, if there is one. That is correct only if there is no
// other sale between the first line and the last.
func buy(ctx context.Context, s *stage, shelf string, buyer int) error {
	stock, err := s.data.number(ctx, shelf)
	if err != nil || stock == 0 {
		return err
	}
	if err := sleep(ctx, 20*time.Millisecond+rand.N(20*time.Millisecond)); err != nil {
		return err
	}
	if err := s.data.setNumber(ctx, shelf, stock-1); err != nil {
		return err
	}
	phone := phones - stock + 1
	s.out.progress("%s: phone %d sold to buyer %d", shelf, phone, buyer)
	return s.data.add(ctx, shelf+" books", fmt.Sprint(phone, buyer))
}

func readBooks(ctx context.Context, s *stage, shelf string) ([]sale, error) {
	lines, err := s.data.list(ctx, shelf+" books")
	if err != nil {
		return nil, err
	}
	books := make([]sale, len(lines))
	for i, line := range lines {
		if _, err := fmt.Sscan(line, &books[i].phone, &books[i].buyer); err != nil {
			return nil, fmt.Errorf("invalid line %q in the books: %w", line, err)
		}
	}
	return books, nil
}

func checkUnlockedSale(books []sale) []claim {
	first := 0
	for _, b := range books {
		if b.phone == 1 {
			first++
		}
	}
	return []claim{
		claimf(len(books) > phones, "without a lock, the shops oversold: %d phones sold of %d; phone 1 was sold to %d buyers", len(books), phones, first),
	}
}

func checkLockedSale(books []sale) []claim {
	inOrder := true
	sold, served := make(map[int]int), make(map[int]int)
	for i, b := range books {
		inOrder = inOrder && b.phone == i+1
		sold[b.phone]++
		served[b.buyer]++
	}
	return []claim{
		claimf(len(books) == phones, "with a lock: %d phones sold of %d", len(books), phones),
		claimf(inOrder, "in order, from phone 1 to phone %d", phones),
		claimf(len(sold) == len(books) && len(served) == len(books), "%d distinct phones to %d distinct buyers", len(sold), len(served)),
	}
}
