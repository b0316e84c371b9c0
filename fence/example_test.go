package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/redis/rueidis"
)

// Tokens of two holders, one after the other, as Hold.Token returns them.
const first, second = 1795225388576199, 1795225388576200

// A holder locks, works, and writes its result behind a guard.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		log.Fatal(err)
	}

	h, err := c.NewLock("report").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)
	// … write the report, however long that takes …
	err = guard.Set(h.Context(), h.Token(), "report:text", "all is well")
	switch {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("somebody else has begun anew; this report is for the bin")
	case err != nil:
		log.Print(err)
	default:
		fmt.Println("written")
	}
	// Output: written
}

func ExampleRedis() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(guard.Set(ctx, second, "stock:7", "9"))
	fmt.Println(guard.Set(ctx, first, "stock:7", "11")) // this holder was paused
	// Output:
	// <nil>
	// leasehold: fenced set "stock:7": stale fencing token 1795225388576199: 1795225388576200 was seen
}

// A script of your own sees its own KEYS and ARGV, and runs only with a token that
// is not stale.
func ExampleRedis_Run() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		log.Fatal(err)
	}

	setFor := fence.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])`)
	reply, err := guard.Run(ctx, second, setFor, []string{"session:7"}, "open", "60000")
	said, _ := reply.ToString()
	fmt.Println(said, err)
	_, err = guard.Run(ctx, first, setFor, []string{"session:7"}, "closed", "60000")
	fmt.Println(errors.Is(err, fence.ErrStale))
	// Output:
	// OK <nil>
	// true
}

// A mark guards data of one process: check and write are one step.
func ExampleMark_Do() {
	var mark fence.Mark
	price := 0
	set := func(token uint64, to int) error {
		return mark.Do(token, func() error { price = to; return nil })
	}
	fmt.Println(set(second, 20), price)
	fmt.Println(set(first, 10), price)
	// Output:
	// <nil> 20
	// leasehold: fence: stale fencing token 1795225388576199: 1795225388576200 was seen 20
}

func ExampleMarks() {
	var marks fence.Marks
	fmt.Println(marks.Of("account:1").Check(second))
	fmt.Println(marks.Of("account:2").Check(first)) // another account, another lock
	fmt.Println(marks.Of("account:1").Check(first))
	// Output:
	// <nil>
	// <nil>
	// leasehold: fence "account:1": stale fencing token 1795225388576199: 1795225388576200 was seen
}

// A service that remembers the largest token of each account, and a client of it.
func ExampleHandler() {
	var marks fence.Marks
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", fence.Handler(
		func(r *http.Request, token uint64) error { return marks.Of(r.PathValue("id")).Check(token) },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Between the check and this point a newer holder may have come: write in one
			// step with a second check.
			err := marks.Of(r.PathValue("id")).Do(fence.FromContext(r.Context()), func() error { return nil })
			if !fence.Refuse(w, err) {
				fmt.Fprint(w, "saved")
			}
		})))
	server := httptest.NewServer(mux)
	defer server.Close()

	for _, token := range []uint64{second, first} { // as from Hold.Token
		r, err := http.NewRequest(http.MethodPut, server.URL+"/accounts/1", nil)
		if err != nil {
			log.Fatal(err)
		}
		if err := fence.SetHeader(r.Header, token); err != nil {
			log.Fatal(err)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err := fence.FromResponse(resp); errors.Is(err, fence.ErrStale) {
			fmt.Println(resp.Status, err)
		} else {
			fmt.Println(resp.Status, string(body))
		}
	}
	// Output:
	// 200 OK saved
	// 412 Precondition Failed leasehold: fence: stale fencing token 1795225388576199: 1795225388576200 was seen
}

// A transaction calls Advance first, whatever it writes. The table is made once, by the
// statement that Schema returns.
func ExampleSQL() {
	guard, err := fence.NewSQL(fence.PostgreSQL, "")
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
			return err // matches fence.ErrStale when a newer holder was here
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 1"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 10 WHERE id = 2"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = transfer
}

// A row can have its fence in a column, and then one statement checks and writes.
func ExampleRefused() {
	set := func(ctx context.Context, db *sql.DB, token uint64, id, balance int) error {
		n, err := fence.Int64(token)
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
		return fence.Refused(db.QueryRowContext(ctx, "SELECT fence FROM accounts WHERE id = $1", id), token)
	}
	_ = set
}
