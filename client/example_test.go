package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

func Example() {
	redis := exampletest.Start() // in memory; yours is redis://127.0.0.1:6379, say
	defer redis.Close()
	ctx := context.Background()
	c, err := client.Open(ctx, redis.URL())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	l := c.NewLock("orders:42") // no I/O, safe for concurrent use
	h, err := l.Lock(ctx)       // waits until the lock is held or ctx ends
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx) // works although ctx may be over by then

	ship := func(ctx context.Context) error { return ctx.Err() }
	fmt.Println(ship(h.Context())) // over as soon as the lock is not certainly held
	// Output: <nil>
}

// A client on the rueidis client that the application has. Close the client first.
func ExampleNew() {
	redis := exampletest.Start()
	defer redis.Close()
	option, err := client.ParseURL(redis.URL())
	if err != nil {
		log.Fatal(err)
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()

	c, err := client.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer c.Close(ctx)
	fmt.Println(lock.TryDo(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil }))
	// Output: <nil>
}

// What a URL cannot say: here a certificate of the client.
func ExampleParseURL() {
	option, err := client.ParseURL("rediss://jobs:secret@redis.example:6379")
	if err != nil {
		log.Fatal(err)
	}
	var own tls.Certificate // by tls.LoadX509KeyPair
	option.TLSConfig.Certificates = []tls.Certificate{own}
	fmt.Println(option.InitAddress, option.Username, option.TLSConfig.ServerName)

	_, err = client.ParseURL("redis.example:6379")
	fmt.Println(err != nil)
	// Output:
	// [redis.example:6379] jobs redis.example
	// true
}

// Who a client is to operators, whom it tells what happens, and how long it waits for an answer.
func ExampleClient_options() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	c, err := client.Open(ctx, redis.URL(),
		client.WithName("billing"),              // leasehold ls shows it
		client.WithLabel(os.Getenv("POD_NAME")), // and this, with -o wide
		client.WithOpTimeout(2*time.Second),     // then the outcome of a command counts as unknown
		client.WithObserver(lock.Observer{ // leaseholdprom and leaseholdotel make one
			Granted: func(_ context.Context, e lock.Event) { fmt.Println("granted", e.Name) },
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	fmt.Println(lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil }))
	// Output:
	// granted orders:42
	// <nil>
}

// Two applications on one server, with a lock of the same name each.
func ExampleWithKeyPrefix() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	billing := redis.Client(client.WithKeyPrefix("billing:"))
	shipping := redis.Client(client.WithKeyPrefix("shipping:"))

	err := lock.Do(ctx, billing.NewLock("nightly"), func(ctx context.Context) error {
		return lock.TryDo(ctx, shipping.NewLock("nightly"), func(context.Context) error { return nil })
	})
	fmt.Println(err)
	// Output: <nil>
}

// The warnings and errors of the client go to a logger of yours, and not to slog.Default.
func ExampleWithLogger() {
	redis := exampletest.Start()
	defer redis.Close()
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	c := redis.Client(client.WithLogger(logger))

	l := c.NewLock("import", lock.WithMaxHold(10*time.Millisecond))
	_ = lock.Do(context.Background(), l, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	// Output: level=ERROR msg="lock lost" lock=import mode=exclusive cause="held for as long as WithMaxHold allows"
}

// A shorter lease frees the lock of a dead process sooner, and loses the lock sooner when Redis is silent.
func ExampleWithWatchdogTimeout() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	h, err := redis.Client(client.WithWatchdogTimeout(10 * time.Second)).NewLock("orders:42").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(time.Until(h.Until()) < 10*time.Second)
	_ = h.Unlock(ctx)
	// Output: true
}

// A client that tells nobody who it is, and writes no key but those of its locks.
func ExampleWithoutRegistry() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	l := redis.Client(client.WithoutRegistry()).NewLock("orders:42")
	err := lock.Do(ctx, l, func(context.Context) error {
		state, err := l.Inspect(ctx)
		fmt.Println(state.Holders[0].Client.Known())
		return err
	})
	fmt.Println(err)
	// Output:
	// false
	// <nil>
}

// A cluster whose Java peers are older than Redisson 3.22, which publish to all nodes.
func ExamplePubSub() {
	redis := exampletest.Start()
	defer redis.Close()
	c := redis.Client(client.WithPubSub(client.PubSubPlain))
	fmt.Println(client.PubSubPlain, lock.Do(context.Background(), c.NewLock("orders:42"), func(context.Context) error { return nil }))
	// Output: plain <nil>
}

// A quorum of three servers starts while one of them is down.
func ExampleWithLazyConnect() {
	one, two := exampletest.Start(), exampletest.Start()
	defer one.Close()
	defer two.Close()
	ctx := context.Background()
	var locks []lock.Locker
	for _, url := range []string{one.URL(), two.URL(), "redis://127.0.0.1:1"} { // where nobody listens
		c, err := client.Open(ctx, url, client.WithLazyConnect())
		if err != nil {
			log.Fatal(err) // the URL or an option is wrong
		}
		defer func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			c.Close(ctx) // the server that is down confirms nothing
		}()
		locks = append(locks, c.NewLock("leader"))
	}

	// These servers forget nothing when they start again; without the option they have no vote at first.
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers())
	err := lock.Do(ctx, leader, func(context.Context) error {
		fmt.Println("two of three servers say so")
		return nil
	})
	fmt.Println(err == nil || errors.Is(err, lock.ErrUnavailable))
	// Output:
	// two of three servers say so
	// true
}
