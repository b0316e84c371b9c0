//go:build linux

package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/fence/fencesql"
	"github.com/leasehold-go/leasehold/internal/fencetest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The SQL fencing check rejects stale holders in a real PostgreSQL and in SQLite, at every isolation level, whichever
// transaction comes first, waits or is rolled back. The test fails on a write with a smaller token that is committed
// after one with a larger token, a stale write whose error lacks one of the tokens, or a token counter that is still
// raised after a rollback.

// Two holders, one after the other.
const (
	fresh = fencetest.Younger
	stale = fencetest.Older
)

// database is a database on which the fencing check is tested.
type database struct {
	*sql.DB
	dialect fencesql.Dialect
	levels  []sql.IsolationLevel
	repeat  func(error) bool         // whether the transaction should be retried
	waiting func(t *testing.T) bool  // whether a transaction waits for a lock; nil where that is unknown, and the race test has to do
	query   func(text string) string // with placeholders in the database's syntax
}

// do runs a statement, and fails the test if it fails.
func (d *database) do(t *testing.T, text string, args ...any) {
	t.Helper()
	if _, err := d.ExecContext(t.Context(), d.query(text), args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// number returns the single number that a query returns.
func (d *database) number(t *testing.T, text string, args ...any) (n int64) {
	t.Helper()
	if err := d.QueryRowContext(t.Context(), d.query(text), args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// tables makes empty tables: the token counters, an account with its own fence, and a log of the commits.
func (d *database) tables(t *testing.T) *fencesql.Guard {
	t.Helper()
	guard, err := fencesql.New(d.dialect, "")
	if err != nil {
		t.Fatal(err)
	}
	serial := map[fencesql.Dialect]string{fencesql.PostgreSQL: "bigserial PRIMARY KEY", fencesql.SQLite: "integer PRIMARY KEY AUTOINCREMENT"}[d.dialect]
	for _, text := range []string{
		"DROP TABLE IF EXISTS " + fencesql.DefaultTable, guard.Schema(), guard.Schema(), // twice is not an error
		"DROP TABLE IF EXISTS accounts", "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)",
		"DROP TABLE IF EXISTS log", "CREATE TABLE log (n " + serial + ", token bigint NOT NULL)",
	} {
		d.do(t, text)
	}
	return guard
}

// begin opens a transaction that is rolled back when the test ends.
func (d *database) begin(t *testing.T, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := d.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // most have ended by then
	return tx
}

func TestFence(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *database{"postgres": startPostgres, "sqlite": openSQLite} {
		t.Run(name, func(t *testing.T) {
			d := start(t)
			t.Run("advance", func(t *testing.T) { fenceAdvance(t, d) })
			t.Run("refused", func(t *testing.T) { fenceRefused(t, d) })
			t.Run("holders", func(t *testing.T) { fenceHolders(t, d) })
			for _, level := range d.levels {
				if d.waiting != nil {
					t.Run("waits/"+level.String(), func(t *testing.T) { fenceWaits(t, d, level) })
				}
				for name, form := range fenceForms {
					t.Run("race/"+level.String()+"/"+name, func(t *testing.T) { fenceRace(t, d, level, form) })
				}
			}
		})
	}
}

// Transactions one after the other.
func fenceAdvance(t *testing.T, d *database) {
	guard := d.tables(t)
	advance := func(resource string, token uint64, end func(*sql.Tx) error) error {
		tx := d.begin(t, sql.LevelDefault)
		err := guard.Advance(t.Context(), tx, resource, token)
		if err := end(tx); err != nil {
			t.Errorf("the end of %d: %v", token, err)
		}
		return err
	}
	commit, rollback := (*sql.Tx).Commit, (*sql.Tx).Rollback
	for _, c := range []struct {
		resource       string
		token, highest uint64 // after it; 0 means no row
		end            func(*sql.Tx) error
	}{
		{"a", stale, 0, rollback},
		{"a", stale, stale, commit},
		{"a", stale, stale, commit},
		{"a", fresh, stale, rollback}, // a token that was rolled back does not count
		{"a", stale, stale, commit},
		{"a", fresh, fresh, commit},
		{"a", stale, fresh, rollback},
		{"a", stale, fresh, commit}, // a commit despite the rejection does not lower it
		{"b", stale, stale, commit}, // another resource has a separate sequence
		{"it's; -- ∞", 1, 1, commit},
		{"a", 1, fresh, rollback},
		{"a", math.MaxInt64, math.MaxInt64, commit},
		{"a", math.MaxInt64 - 1, math.MaxInt64, rollback},
	} {
		err := advance(c.resource, c.token, c.end)
		what := fmt.Sprintf("%s with %d", c.resource, c.token)
		if highest := max(c.highest, c.token); c.token < c.highest {
			fencetest.IsStale(t, what, err, c.token, highest)
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := d.number(t, "SELECT coalesce(max(token), 0) FROM leasehold_fence WHERE resource = $1", c.resource); uint64(got) != c.highest {
			t.Errorf("after %s the token counter has %d, want %d", what, got, c.highest)
		}
	}
	if err := advance("c", 0, rollback); !errors.Is(err, fence.ErrNoToken) {
		t.Errorf("no token: %v", err)
	}
	if err := advance("c", math.MaxInt64+1, rollback); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a token that does not fit: %v", err)
	}
	if n := d.number(t, "SELECT count(*) FROM leasehold_fence WHERE resource = 'c'"); n != 0 {
		t.Errorf("what is no token made %d registers", n)
	}

	// Without its table, or after its context is canceled, the error is not a rejection.
	other, err := fencesql.New(d.dialect, "no_such_table")
	if err != nil {
		t.Fatal(err)
	}
	var e *lock.Error
	if err := other.Advance(t.Context(), d.begin(t, sql.LevelDefault), "a", fresh); !errors.As(err, &e) || e.Name != "a" || errors.Is(err, fence.ErrStale) {
		t.Errorf("without its table: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := guard.Advance(over, d.begin(t, sql.LevelDefault), "a", fresh); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context: %v", err)
	}
}

// Of two transactions for the same token counter, the second waits for the first, and uses the value that the first one
// left.
//
//	1 the first holder's transaction advances
//	2 the second one's advances, and waits
//	3 the first ends
func fenceWaits(t *testing.T, d *database, level sql.IsolationLevel) {
	for _, c := range []struct {
		name          string
		before        uint64 // in the token counter; 0 means none
		first, second uint64
		commit        bool
	}{
		{"fresh before stale", 1, fresh, stale, true},
		{"fresh before stale, a new register", 0, fresh, stale, true},
		{"stale before fresh", 1, stale, fresh, true},
		{"stale before fresh, a new register", 0, stale, fresh, true},
		{"fresh gives up before stale", 1, fresh, stale, false},
		{"fresh gives up before stale, a new register", 0, fresh, stale, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			guard := d.tables(t)
			if c.before != 0 {
				d.do(t, "INSERT INTO leasehold_fence VALUES ('a', $1)", int64(c.before))
			}
			first, second := d.begin(t, level), d.begin(t, level)
			for _, tx := range []*sql.Tx{first, second} { // the snapshots are taken before
				if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM leasehold_fence"); err != nil {
					t.Fatal(err)
				}
			}
			if err := guard.Advance(t.Context(), first, "a", c.first); err != nil { // 1
				t.Fatal(err)
			}
			answer := make(chan error, 1)
			go func() { answer <- guard.Advance(t.Context(), second, "a", c.second) }() // 2
			for deadline := time.Now().Add(promptTimeout); !d.waiting(t); {
				select {
				case err := <-answer:
					t.Fatalf("the second did not wait: %v", err)
				case <-time.After(5 * time.Millisecond):
				}
				if time.Now().After(deadline) {
					t.Fatal("the second does not wait")
				}
			}
			end := first.Rollback // 3
			if c.commit {
				end = first.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			err := <-answer
			switch {
			case !c.commit || level == sql.LevelReadCommitted && c.second > c.first:
				if err != nil {
					t.Errorf("the second: %v", err)
				} else if err := second.Commit(); err != nil {
					t.Error(err)
				}
			case level == sql.LevelReadCommitted:
				fencetest.IsStale(t, "the second", err, c.second, c.first)
			case !d.repeat(err):
				t.Errorf("the second: %v, want a serialization failure", err)
			}
		})
	}
}

// fenceForms are the ways to check a write: each writes with a token in tx, and reports whether the write was accepted.
var fenceForms = map[string]func(ctx context.Context, d *database, guard *fencesql.Guard, tx *sql.Tx, token uint64) (bool, error){
	"advance": func(ctx context.Context, _ *database, guard *fencesql.Guard, tx *sql.Tx, token uint64) (bool, error) {
		err := guard.Advance(ctx, tx, "account 1", token)
		if errors.Is(err, fence.ErrStale) {
			return false, nil
		}
		return err == nil, err
	},
	"update": func(ctx context.Context, d *database, _ *fencesql.Guard, tx *sql.Tx, token uint64) (bool, error) {
		return changes(ctx, d, tx, "UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2", token, 1)
	},
	"upsert": func(ctx context.Context, d *database, _ *fencesql.Guard, tx *sql.Tx, token uint64) (bool, error) {
		return changes(ctx, d, tx, `INSERT INTO accounts (id, balance, fence) VALUES ($3, $1, $2)
			ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence
			WHERE accounts.fence <= excluded.fence`, token, 2)
	},
}

// changes reports whether a checked statement changed a row.
func changes(ctx context.Context, d *database, tx *sql.Tx, text string, token uint64, id int) (bool, error) {
	n, err := fencesql.Int64(token)
	if err != nil {
		return false, err
	}
	res, err := tx.ExecContext(ctx, d.query(text), n%1000, n, id)
	if err != nil {
		return false, err
	}
	changed, err := res.RowsAffected()
	return changed > 0, err
}

// Many holders, fresh and stale, write at once. The tokens in the log of the accepted writes never decrease. The log is
// written in the same transactions, and so in the order of their commits.
func fenceRace(t *testing.T, d *database, level sql.IsolationLevel, form func(context.Context, *database, *fencesql.Guard, *sql.Tx, uint64) (bool, error)) {
	guard := d.tables(t)
	d.do(t, "INSERT INTO accounts VALUES (1, 0, 0)")
	const writers = 6
	each := amount(200)
	var tokens, handedOff, refused, repeated atomic.Int64

	write := func(token uint64) error {
		tx, err := d.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after the commit
		ok, err := form(t.Context(), d, guard, tx, token)
		if err != nil {
			return err
		}
		if !ok {
			refused.Add(1)
			return nil
		}
		if _, err := tx.ExecContext(t.Context(), d.query("INSERT INTO log (token) VALUES ($1)"), int64(token)); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		handedOff.Add(1)
		return nil
	}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range each {
				token := uint64(tokens.Add(1) + 100 - int64(i*i%11)) // increases, with steps back
				err := write(token)
				if d.repeat(err) {
					repeated.Add(1)
					continue
				}
				if err != nil {
					t.Errorf("token %d: %v", token, err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d passed, %d were refused, %d to be repeated", handedOff.Load(), refused.Load(), repeated.Load())
	if handedOff.Load() == 0 || refused.Load() == 0 {
		t.Error("the test shows nothing")
	}
	rows, err := d.QueryContext(t.Context(), "SELECT token FROM log ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var last, n int64
	for ; rows.Next(); n++ {
		var token int64
		if err := rows.Scan(&token); err != nil {
			t.Fatal(err)
		}
		if token < last {
			t.Errorf("write %d was committed with token %d, the one before it with %d", n, token, last)
		}
		last = token
	}
	if err := rows.Err(); err != nil || n != handedOff.Load() {
		t.Errorf("the log has %d writes, %v", n, err)
	}
}

// A row with its own fence shows why it was not changed.
func fenceRefused(t *testing.T, d *database) {
	d.tables(t)
	set := func(token uint64, id int) error {
		tx := d.begin(t, sql.LevelDefault)
		ok, err := fenceForms["update"](t.Context(), d, nil, tx, token)
		if id != 1 {
			ok, err = changes(t.Context(), d, tx, "UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2", token, id)
		}
		if err == nil && !ok {
			err = fencesql.Unchanged(tx.QueryRowContext(t.Context(), d.query("SELECT fence FROM accounts WHERE id = $1"), id), token)
		}
		return errors.Join(err, tx.Commit())
	}
	d.do(t, "INSERT INTO accounts (id, balance) VALUES (1, 0)")
	for _, token := range []uint64{stale, stale, fresh, fresh} {
		if err := set(token, 1); err != nil {
			t.Errorf("%d: %v", token, err)
		}
	}
	fencetest.IsStale(t, "an older one", set(stale, 1), stale, fresh)
	if got := d.number(t, "SELECT fence FROM accounts WHERE id = 1"); got != fresh {
		t.Errorf("the fence is %d", got)
	}
	if err := set(fresh, 3); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, fence.ErrStale) {
		t.Errorf("no such row: %v", err)
	}
	if err := set(0, 1); !errors.Is(err, fence.ErrNoToken) {
		t.Errorf("no token: %v", err)
	}
	// Refused reports no stale row unless the fence rejected it.
	tx := d.begin(t, sql.LevelDefault)
	if err := fencesql.Unchanged(tx.QueryRowContext(t.Context(), "SELECT fence FROM accounts WHERE id = 1"), fresh); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("not refused at all: %v", err)
	}
}

// A holder loses its lock and does not check it, another acquires the lock and writes, and then the first writes, too.
func fenceHolders(t *testing.T, d *database) {
	guard := d.tables(t)
	server := redistest.Start(t)
	d.do(t, "INSERT INTO accounts VALUES (1, 100, 0)")
	withdraw := func(h lock.Hold, left int) error {
		tx := d.begin(t, sql.LevelDefault)
		if err := guard.Advance(t.Context(), tx, "account 1", h.Token()); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if _, err := tx.ExecContext(t.Context(), d.query("UPDATE accounts SET balance = $1 WHERE id = 1"), left); err != nil {
			t.Fatal(err)
		}
		return tx.Commit()
	}
	take := func() lock.Hold {
		t.Helper()
		h, err := ours(t, server.Client(t)).NewLock("account 1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := take()
	server.Do(t, "DEL", "account 1") // as if its lease had expired while it was paused
	second := take()
	if err := withdraw(second, 10); err != nil {
		t.Error(err)
	}
	fencetest.IsStale(t, "the first holder", withdraw(first, 50), first.Token(), second.Token())
	if err := withdraw(second, 5); err != nil {
		t.Error(err)
	}
	if balance := d.number(t, "SELECT balance FROM accounts"); balance != 5 {
		t.Errorf("the balance is %d", balance)
	}
}

// A transaction that a stale holder cannot commit.
func Example_fencedTransaction() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection would have a separate in-memory database
	guard, err := fencesql.New(fencesql.SQLite, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, text := range []string{guard.Schema(), "CREATE TABLE accounts (balance integer)", "INSERT INTO accounts VALUES (100)"} {
		if _, err := db.ExecContext(ctx, text); err != nil {
			fmt.Println(err)
			return
		}
	}

	withdraw := func(token uint64, sum int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Advance(ctx, tx, "account", token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - ?", sum); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(withdraw(34, 10))
	fmt.Println(withdraw(33, 50)) // the holder was paused, and has lost the lock
	// Output:
	// <nil>
	// leasehold: fence "account": stale fencing token 33: highest token seen is 34
}

// openSQLite returns a database in a file, which many connections share.
func openSQLite(t *testing.T) *database {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "fence.db")+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &database{
		DB: db, dialect: fencesql.SQLite, levels: []sql.IsolationLevel{sql.LevelDefault},
		repeat: func(err error) bool {
			var e *sqlite.Error
			return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY
		},
		query: func(text string) string { return strings.ReplaceAll(text, "$", "?") },
	}
}

// startPostgres runs a separate PostgreSQL server, on a socket in a temporary directory, and returns once it responds.
// Both are removed when the test ends.
//
// Its programs are found in $LEASEHOLD_POSTGRES, on $PATH, or where distributions install them. Without them the test
// is skipped, but fails if $CI is set or $LEASEHOLD_REQUIRE_POSTGRES is 1.
func startPostgres(t *testing.T) *database {
	t.Helper()
	bin := findPostgres(t)
	dir, err := os.MkdirTemp("", "pg") // not t.TempDir: the path of a socket may have up to 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	who := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT} // the server cleans up, and does not wait for clients
	if os.Getuid() == 0 {                                   // PostgreSQL refuses to run as root
		who.Credential = unprivilegedUser(t)
		if err := os.Chown(dir, int(who.Credential.Uid), int(who.Credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, program), args...)
		cmd.Dir, cmd.SysProcAttr = dir, who
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
		return cmd
	}
	data, said := filepath.Join(dir, "data"), &strings.Builder{}

	exited := make(chan struct{})
	started := make(chan error)
	var server *exec.Cmd
	go func() {
		// Pdeathsig is sent when the parent thread exits, so keep this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		if out, err := command("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync").CombinedOutput(); err != nil {
			started <- fmt.Errorf("initdb: %w\n%s", err, out)
			return
		}
		server = command("postgres", "-D", data, "-k", dir, "-h", "", "-p", "5432", "-F", "-c", "max_connections=50")
		server.Stdout, server.Stderr = said, said
		err := server.Start()
		started <- err
		if err == nil {
			_ = server.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-exited
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT) // "fast": ends open transactions
		select {
		case <-exited:
		case <-time.After(promptTimeout):
			_ = server.Process.Kill()
			<-exited
			t.Errorf("postgres did not end in %v\n%s", promptTimeout, said)
		}
	})

	db, err := sql.Open("pgx", "host="+dir+" port=5432 user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(20)
	for deadline := time.Now().Add(2 * promptTimeout); ; {
		err := db.PingContext(t.Context())
		if err == nil {
			break
		}
		select {
		case <-exited:
			t.Fatalf("postgres ended immediately\n%s", said)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("postgres does not respond: %v", err)
		}
	}
	d := &database{
		DB: db, dialect: fencesql.PostgreSQL,
		levels: []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
		repeat: func(err error) bool {
			var e *pgconn.PgError
			return errors.As(err, &e) && e.Code == "40001"
		},
		query: func(text string) string { return text },
	}
	d.waiting = func(t *testing.T) bool {
		return d.number(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") > 0
	}
	return d
}

// findPostgres returns the directory of PostgreSQL's programs, or ends the test.
func findPostgres(t *testing.T) string {
	t.Helper()
	has := func(dir string) bool {
		for _, program := range []string{"initdb", "postgres"} {
			if _, err := exec.LookPath(filepath.Join(dir, program)); err != nil {
				return false
			}
		}
		return true
	}
	if dir := os.Getenv("LEASEHOLD_POSTGRES"); dir != "" {
		if !has(dir) {
			t.Fatalf("LEASEHOLD_POSTGRES: no initdb and postgres in %s", dir)
		}
		return dir
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*"} {
		found, _ := filepath.Glob(pattern) // the patterns are well-formed
		slices.Reverse(found)
		dirs = append(dirs, found...)
	}
	if i := slices.IndexFunc(dirs, has); i >= 0 {
		return dirs[i]
	}
	if os.Getenv("CI") != "" || os.Getenv("LEASEHOLD_REQUIRE_POSTGRES") == "1" {
		t.Fatal("this test needs PostgreSQL, and must not be skipped here (CI or LEASEHOLD_REQUIRE_POSTGRES is set)")
	}
	t.Skip("NOT TESTED: this test needs PostgreSQL; scripts/postgres.sh installs it")
	return ""
}

// unprivilegedUser returns a user that is not root.
func unprivilegedUser(t *testing.T) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Fatal("PostgreSQL does not run as root, and there is no other user")
	return nil
}
