package fencesql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/fence/fencesql"
)

// A transaction calls Advance before it writes. Create the table once, with the statement that
// Schema returns.
func ExampleGuard() {
	guard, err := fencesql.New(fencesql.PostgreSQL, "")
	if err != nil {
		log.Fatal(err)
	}
	transfer := func(ctx context.Context, db *sql.DB, token uint64) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after a Commit
		if err := guard.Advance(ctx, tx, "accounts", token); err != nil {
			return err // matches fence.ErrStale if a newer holder has written
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 1"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 10 WHERE id = 2"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = transfer // runs on a real PostgreSQL in the tests of this repository
	fmt.Println(guard.Schema())
	// Output:
	// CREATE TABLE IF NOT EXISTS leasehold_fence (resource text PRIMARY KEY, token bigint NOT NULL)
}

// A row can store the highest token in a column, so that one statement checks and writes.
func ExampleUnchanged() {
	set := func(ctx context.Context, db *sql.DB, token uint64, id, balance int) error {
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
	_ = set
}
