//go:build linux

package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/fence/fencesql"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// The code of docs/guides/postgresql.md.

// transfer moves money in one transaction, and fails if a newer holder has written.
func transfer(ctx context.Context, db *sql.DB, guard *fencesql.Guard, l lock.Locker, from, to, cents int) error {
	h, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer h.Unlock(ctx)

	tx, err := db.BeginTx(h.Context(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	if err := guard.Advance(h.Context(), tx, l.Name(), h.Token()); err != nil {
		return err // matches fence.ErrStale if a newer holder has written
	}
	if _, err := tx.ExecContext(h.Context(), "UPDATE accounts SET balance = balance - $1 WHERE id = $2", cents, from); err != nil {
		return err
	}
	if _, err := tx.ExecContext(h.Context(), "UPDATE accounts SET balance = balance + $1 WHERE id = $2", cents, to); err != nil {
		return err
	}
	return tx.Commit()
}

// setBalance writes one row, which has its own highest token.
func setBalance(ctx context.Context, db *sql.DB, token uint64, id, balance int) error {
	n, err := fencesql.Int64(token)
	if err != nil {
		return err
	}
	res, err := db.ExecContext(ctx, "UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2", balance, n, id)
	if err != nil {
		return err
	}
	if changed, err := res.RowsAffected(); err != nil || changed > 0 {
		return err
	}
	return fencesql.Unchanged(db.QueryRowContext(ctx, "SELECT fence FROM accounts WHERE id = $1", id), token)
}

func TestHowto_postgresql(t *testing.T) {
	d := startPostgres(t)
	ctx := t.Context()
	guard, err := fencesql.New(fencesql.PostgreSQL, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		guard.Schema(),
		"CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)",
		"INSERT INTO accounts VALUES (1, 100), (2, 100)",
	} {
		if _, err := d.ExecContext(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(redistest.Start(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	l := c.NewLock("accounts", lock.WithFencing())

	late, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := transfer(ctx, d.DB, guard, l, 1, 2, 30); err != nil {
		t.Fatal(err)
	}
	newer, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Unlock(ctx)
	if err := setBalance(ctx, d.DB, newer.Token(), 1, 60); err != nil {
		t.Error(err)
	}
	if err := setBalance(ctx, d.DB, late.Token(), 1, 999); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a stale token: %v", err)
	}
	if got := d.number(t, "SELECT balance * 1000 + (SELECT balance FROM accounts WHERE id = 2) FROM accounts WHERE id = 1"); got != 60_130 {
		t.Errorf("the balances are %d", got)
	}
}
