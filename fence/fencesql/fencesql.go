// Package fencesql guards SQL databases: it refuses the writes of holders whose fencing token is
// stale. Package fence says why, and what to mind.
//
// A [Guard] is for whatever a transaction writes. Where the data is one row, a column in that row is
// enough: see [Unchanged].
//
// PostgreSQL and SQLite are supported. MySQL and MariaDB are not: their drivers count the rows that a statement changed, and not those that it
// matched, and they lack the upsert with a condition.
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

// Dialect says how a database names parameters.
type Dialect int

// The databases on which the guard was tried.
const (
	PostgreSQL Dialect = iota + 1 // $1; 9.5 and later
	SQLite                        // ?; 3.35 and later
)

// Guard guards all that a transaction writes, with a table of registers
// in the same database: a row for each resource, with the largest token seen. It
// is safe for concurrent use.
//
// A row stays until you delete it; do so with its resource, if no stale holder
// can bring the resource back. Where the data is one row, a column in that row is enough,
// without a second table: see [Unchanged].
type Guard struct{ table, advance string }

// DefaultTable is the table of registers when none is named.
const DefaultTable = "leasehold_fence"

// tables matches plain identifiers, with or without a schema.
var tables = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// New returns a guard that keeps its registers in table, [DefaultTable] if it
// is empty. It does no I/O: make the table as [Guard.Schema] says.
func New(d Dialect, table string) (*Guard, error) {
	if table == "" {
		table = DefaultTable
	}
	if !tables.MatchString(table) { // it becomes part of statements
		return nil, wrap("fence", "", fmt.Errorf("bad table name %.64q", table))
	}
	s := &Guard{table: table}
	switch d {
	case PostgreSQL:
		s.advance = fmt.Sprintf(advance, table, "$1", "$2")
	case SQLite:
		s.advance = fmt.Sprintf(advance, table, "?", "?")
	default:
		return nil, wrap("fence", "", fmt.Errorf("unknown dialect %d: want PostgreSQL or SQLite; MySQL and MariaDB are not supported", d))
	}
	return s, nil
}

// advance takes the row's lock, also when it does not change the token, and
// compares with the row of that moment, not of the begin of the statement. It
// returns the largest token, so one round trip is enough.
const advance = `INSERT INTO %s AS register (resource, token) VALUES (%s, %s)
ON CONFLICT (resource) DO UPDATE
SET token = CASE WHEN excluded.token > register.token THEN excluded.token ELSE register.token END
RETURNING token`

// Schema returns the statement that makes the table, for your migrations.
func (s *Guard) Schema() string {
	return "CREATE TABLE IF NOT EXISTS " + s.table + " (resource text PRIMARY KEY, token bigint NOT NULL)"
}

// Advance raises the register of a resource to token, or fails with [fence.ErrStale]
// when a larger one was seen: roll the transaction back then. It waits for a
// transaction that has the register, until that ends. So from Advance to the
// commit no other transaction gets past Advance, and no older holder does after it. A rollback takes
// the register back, too.
//
// Make it the first statement of the transaction that writes. It is correct at every
// isolation level. Above READ COMMITTED, PostgreSQL fails some transactions that
// waited with a serialization failure (40001): repeat the transaction, with the
// same token. SQLite returns SQLITE_BUSY to a transaction that may not wait (PRAGMA
// busy_timeout). A transaction that advances several registers must do so in one order.
func (s *Guard) Advance(ctx context.Context, tx *sql.Tx, resource string, token uint64) error {
	n, err := bigint(token)
	if err != nil {
		return wrap("fence", resource, err)
	}
	var highest int64
	if err := tx.QueryRowContext(ctx, s.advance, resource, n).Scan(&highest); err != nil {
		return wrap("fence", resource, err)
	}
	return wrap("fence", resource, fence.Check(token, uint64(highest)))
}

// Int64 returns a token as SQL takes it, for statements of your own. It fails with
// [fence.ErrNoToken] when it is 0.
func Int64(token uint64) (int64, error) {
	n, err := bigint(token)
	return n, wrap("fence", "", err)
}

func bigint(token uint64) (int64, error) {
	if token > math.MaxInt64 {
		return 0, fmt.Errorf("token %d does not fit a BIGINT", token)
	}
	return int64(token), fence.Check(token, 0)
}

// Unchanged returns why a guarded statement changed no row. The guard is a column in
// the row itself (fence BIGINT NOT NULL DEFAULT 0), and the statement one of
//
//	UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
//	INSERT INTO accounts (id, balance, fence) VALUES ($1, $2, $3)
//	ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence
//	WHERE accounts.fence <= excluded.fence
//
// Each is right by itself, in a transaction or not. When RowsAffected is 0, the
// row is missing or the token stale. A query for the fence column tells which:
//
//	if n == 0 {
//		return fencesql.Unchanged(db.QueryRowContext(ctx, "SELECT fence FROM accounts WHERE id = $1", id), token)
//	}
//
// MySQL and MariaDB are not supported: with their drivers RowsAffected is also 0 when a write is repeated with the same values and the
// same token. The row then has that very token, and the error says so and matches [errors.ErrUnsupported].
//
// The error is never nil; it matches [fence.ErrStale], or [sql.ErrNoRows] when there is
// no such row. Give tokens to such statements by [Int64], so that 0 does not slip
// through. A DELETE takes the fence along, and a stale upsert makes the row anew. Mark
// such rows as deleted instead, or use [Guard.Advance].
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
	return wrap("fence", "", err)
}

// wrap returns err with the operation and the resource; it returns nil for nil.
func wrap(op, resource string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: op, Name: resource, Err: err}
}
