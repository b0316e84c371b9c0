// Package fencesql rejects writes to SQL databases from lock holders whose fencing token is stale.
// Package fence documents why, and how to use guards safely.
//
// A [Guard] protects everything that a transaction writes. If the data is one row, a column in that
// row is enough (see [Unchanged]).
//
// PostgreSQL and SQLite are supported. MySQL and MariaDB are not. Their drivers count changed rows
// instead of matched rows, and they lack a conditional upsert.
package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
)

// Dialect is how a database names parameters.
type Dialect int

// Supported databases.
const (
	PostgreSQL Dialect = iota + 1 // $1; 9.5 and later
	SQLite                        // ?; 3.35 and later
)

// Guard protects everything that a transaction writes, with a table of token counters in the same
// database. The table has one row per resource, with the largest token seen. It is safe for
// concurrent use.
//
// A row stays until you delete it. Delete it with its resource if no stale holder can create the
// resource again. If the data is one row, a column in that row is enough, without a second table
// (see [Unchanged]).
type Guard struct{ table, advance string }

// DefaultTable is the default name of the table of token counters.
const DefaultTable = "leasehold_fence"

// tables matches plain identifiers, with or without a schema.
var tables = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// New returns a guard with its token counters in table, or in [DefaultTable] if table is "". It
// sends no statement. Create the table with the statement of [Guard.Schema].
func New(d Dialect, table string) (*Guard, error) {
	if table == "" {
		table = DefaultTable
	}
	if !tables.MatchString(table) { // it becomes part of statements
		return nil, wrap("", fmt.Errorf("bad table name %.64q", table))
	}
	s := &Guard{table: table}
	switch d {
	case PostgreSQL:
		s.advance = fmt.Sprintf(advance, table, "$1", "$2")
	case SQLite:
		s.advance = fmt.Sprintf(advance, table, "?", "?")
	default:
		return nil, wrap("", fmt.Errorf("unknown dialect %d: want PostgreSQL or SQLite; MySQL and MariaDB are not supported", d))
	}
	return s, nil
}

// advance locks the row even if it does not change the token. It compares with the current row, not
// with the row at the start of the statement. It returns the largest token, so one round trip is
// enough.
const advance = `INSERT INTO %s AS register (resource, token) VALUES (%s, %s)
ON CONFLICT (resource) DO UPDATE
SET token = CASE WHEN excluded.token > register.token THEN excluded.token ELSE register.token END
RETURNING token`

// Schema returns the statement that creates the table, for your migrations.
func (s *Guard) Schema() string {
	return "CREATE TABLE IF NOT EXISTS " + s.table + " (resource text PRIMARY KEY, token bigint NOT NULL)"
}

// Advance raises the token counter of a resource to token, or fails with [fence.ErrStale] if a
// larger one was seen. Roll the transaction back then. Advance waits for a transaction that has
// locked the counter. From Advance to the commit, no other transaction passes Advance. After the
// commit, no older holder does. A rollback restores the counter.
//
// Make it the first statement of the transaction that writes. It is correct at every isolation
// level. Above READ COMMITTED, PostgreSQL fails some transactions that waited with a serialization
// failure (40001). Repeat the transaction with the same token. SQLite returns SQLITE_BUSY to a
// transaction that may not wait (PRAGMA busy_timeout). A transaction that advances several counters
// must always do so in the same order.
func (s *Guard) Advance(ctx context.Context, tx *sql.Tx, resource string, token uint64) error {
	n, err := bigint(token)
	if err != nil {
		return wrap(resource, err)
	}
	var highest int64
	if err := tx.QueryRowContext(ctx, s.advance, resource, n).Scan(&highest); err != nil {
		return wrap(resource, err)
	}
	return wrap(resource, fence.Check(token, uint64(highest)))
}

// Int64 returns a token as a SQL parameter, for custom statements. It fails with [fence.ErrNoToken]
// if the token is 0.
func Int64(token uint64) (int64, error) {
	n, err := bigint(token)
	return n, wrap("", err)
}

func bigint(token uint64) (int64, error) {
	if token > math.MaxInt64 {
		return 0, fmt.Errorf("token %d does not fit a BIGINT", token)
	}
	return int64(token), fence.Check(token, 0)
}

// Unchanged returns why a guarded statement changed no row. The guard is a column in the row itself
// (fence BIGINT NOT NULL DEFAULT 0), and the statement is one of
//
//	UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
//	INSERT INTO accounts (id, balance, fence) VALUES ($1, $2, $3)
//	ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence
//	WHERE accounts.fence <= excluded.fence
//
// Each is correct on its own, in a transaction or not. If RowsAffected is 0, the row is missing or
// the token is stale. A query for the fence column tells which:
//
//	if n == 0 {
//		return fencesql.Unchanged(db.QueryRowContext(ctx, "SELECT fence FROM accounts WHERE id = $1", id), token)
//	}
//
// The error is never nil. It matches [fence.ErrStale], or [sql.ErrNoRows] if there is no such row.
// With MySQL and MariaDB, RowsAffected is also 0 if a write is repeated with the same values and
// token. The error then matches [errors.ErrUnsupported].
//
// Pass tokens to such statements with [Int64], so that 0 is rejected. A DELETE deletes the counter
// too, and a stale upsert can then create the row again. Mark such rows as deleted instead, or use
// [Guard.Advance].
func Unchanged(row *sql.Row, token uint64) error {
	var highest int64
	err := row.Scan(&highest)
	if err == nil {
		switch err = fence.Check(token, uint64(highest)); {
		case err != nil:
		case token == uint64(highest):
			err = fmt.Errorf("%w: no row was changed, and the row has this token already: MySQL and MariaDB are not supported, because their drivers count changed rows; "+
				"with another database, check the other conditions of the statement", errors.ErrUnsupported)
		default:
			err = errors.New("no row was changed, but the token is not stale: check the other conditions of the statement")
		}
	}
	return wrap("", err)
}

// wrap returns err with the resource, or nil for nil.
func wrap(resource string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: "fence", Name: resource, Err: err}
}
