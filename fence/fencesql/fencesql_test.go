package fencesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/fence/fencesql"
	"github.com/leasehold-go/leasehold/lock"
)

// The integration tests run this guard on real databases. These tests need no database.

func TestNew(t *testing.T) {
	for table, want := range map[string]string{"": "leasehold_fence", "fences": "fences", "app.Fences_2": "app.Fences_2", "_x": "_x"} {
		for _, d := range []fencesql.Dialect{fencesql.PostgreSQL, fencesql.SQLite} {
			s, err := fencesql.New(d, table)
			if err != nil || !strings.Contains(s.Schema(), " "+want+" (") {
				t.Errorf("%q: %v", table, err)
			}
		}
	}
	for _, table := range []string{"a b", "a;DROP TABLE b", `"a"`, "a.b.c", "1a", "a.", ".a", "a-b", "ä", "a\n"} {
		if _, err := fencesql.New(fencesql.PostgreSQL, table); err == nil {
			t.Errorf("%q is a table", table)
		}
	}
	for _, d := range []fencesql.Dialect{0, 3, -1} {
		if _, err := fencesql.New(d, ""); err == nil {
			t.Errorf("%d is a dialect", d)
		}
	}
}

func TestInt64(t *testing.T) {
	_, err := fencesql.Int64(0)
	if !errors.Is(err, fence.ErrNoToken) || !errors.As(err, new(*lock.Error)) {
		t.Errorf("0: %v, want ErrNoToken", err)
	}
	if n, err := fencesql.Int64(math.MaxInt64); err != nil || n != math.MaxInt64 {
		t.Errorf("the largest: %d, %v", n, err)
	}
	if n, err := fencesql.Int64(math.MaxInt64 + 1); err == nil {
		t.Errorf("one more: %d", n)
	}
	if n, err := fencesql.Int64(1_795_225_388_576_200); err != nil || n != 1_795_225_388_576_200 {
		t.Errorf("%d, %v", n, err)
	}
}

// rows is a database with one row, whose fence is the number. Like the drivers of MySQL, it counts the rows that a statement
// changes.
type rows int64

func (r rows) Open(string) (driver.Conn, error)             { return r, nil }
func (r rows) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r rows) Driver() driver.Driver                        { return r }
func (r rows) Prepare(string) (driver.Stmt, error)          { return r, nil }
func (r rows) Begin() (driver.Tx, error)                    { return nil, errors.New("no transactions") }
func (r rows) Close() error                                 { return nil }
func (r rows) NumInput() int                                { return -1 }
func (r rows) Columns() []string                            { return []string{"fence"} }
func (r rows) Query([]driver.Value) (driver.Rows, error)    { return &row{rows: r}, nil }
func (r rows) Exec(args []driver.Value) (driver.Result, error) {
	if token := args[0].(int64); token > int64(r) {
		return driver.RowsAffected(1), nil
	}
	return driver.RowsAffected(0), nil // the row already has these values, or a larger token
}

type row struct {
	rows
	read bool
}

func (r *row) Next(to []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read, to[0] = true, int64(r.rows)
	return nil
}

// A driver that counts changed rows reports 0 for a repeated write. The error reports that the database is not supported, instead
// of blaming the statement. A stale token is still reported.
func TestUnchanged_changedRows(t *testing.T) {
	const stored = 7
	db := sql.OpenDB(rows(stored))
	defer db.Close()
	write := func(token uint64) error {
		n, err := fencesql.Int64(token)
		if err != nil {
			return err
		}
		result, err := db.ExecContext(t.Context(), "UPDATE accounts SET fence = ? WHERE id = 1 AND fence <= ?", n, n)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); n > 0 || err != nil {
			return err
		}
		return fencesql.Unchanged(db.QueryRowContext(t.Context(), "SELECT fence FROM accounts WHERE id = 1"), token)
	}
	if err := write(stored + 1); err != nil {
		t.Errorf("a larger token: %v", err)
	}
	if err := write(stored); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "MySQL and MariaDB are not supported") {
		t.Errorf("the same write again: %v", err)
	}
	if err := write(stored - 1); !errors.Is(err, fence.ErrStale) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a stale token: %v", err)
	}
	row := db.QueryRowContext(t.Context(), "SELECT fence FROM accounts WHERE id = 1")
	if err := fencesql.Unchanged(row, stored+1); err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a larger token, and no row was changed: %v", err)
	}
}
