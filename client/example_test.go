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
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// One client per process creates all locks. Do acquires the lock, calls the function, and releases the lock.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx) // releases every lock that it still holds

	orders := c.NewLock("orders:42", lock.WithWait(5*time.Second)) // no I/O, safe for concurrent use
	err = lock.Do(ctx, orders, func(ctx context.Context) error {
		fmt.Println("shipping") // ctx is canceled as soon as the lock can no longer be guaranteed
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// shipping
	// <nil>
}

// A hold that the caller manages.
func ExampleClient_NewLock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	l := c.NewLock("orders:42")
	h, err := l.Lock(ctx) // waits until the lock is held or ctx is canceled
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx) // works even after ctx is canceled

	ship := func(ctx context.Context) error { return ctx.Err() }
	fmt.Println(ship(h.Context())) // canceled as soon as the lock can no longer be guaranteed
	// Output: <nil>
}

// A client on the application's rueidis client. Close the leasehold client first.
func ExampleNew() {
	ctx := context.Background()
	option, err := client.ParseURL("redis://" + addr)
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
		log.Print(err)
		return
	}
	defer c.Close(ctx)

	fmt.Println(lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil }))
	// Output: <nil>
}

// Set options that a URL cannot contain: here a certificate of the client.
func ExampleParseURL() {
	option, err := client.ParseURL("rediss://jobs:secret@redis.example:6379")
	if err != nil {
		log.Fatal(err)
	}
	var own tls.Certificate // from tls.LoadX509KeyPair
	option.TLSConfig.Certificates = []tls.Certificate{own}
	fmt.Println(option.InitAddress, option.Username, option.TLSConfig.ServerName)

	_, err = client.ParseURL("redis.example:6379")
	fmt.Println(err != nil)
	// Output:
	// [redis.example:6379] jobs redis.example
	// true
}

// Set how operators see the client, which events it reports, and how long it waits for a reply.
func ExampleClient_options() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr,
		client.WithName("billing"),              // leasehold ls shows it
		client.WithLabel(os.Getenv("POD_NAME")), // and this, with -o wide
		client.WithOpTimeout(2*time.Second),     // after that, the outcome of a command counts as unknown
		client.WithObserver(lock.Observer{ // leaseholdprom and leaseholdotel create one
			Acquired: func(_ context.Context, e lock.Event) { fmt.Println("granted", e.Name) },
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

// Two applications on one server have locks with the same name.
func ExampleWithKeyPrefix() {
	ctx := context.Background()
	billing, err := client.Open(ctx, "redis://"+addr, client.WithKeyPrefix("billing:"))
	if err != nil {
		log.Fatal(err)
	}
	defer billing.Close(ctx)
	shipping, err := client.Open(ctx, "redis://"+addr, client.WithKeyPrefix("shipping:")) // as another application does
	if err != nil {
		log.Print(err)
		return
	}
	defer shipping.Close(ctx)

	err = lock.Do(ctx, billing.NewLock("nightly"), func(ctx context.Context) error {
		return lock.TryDo(ctx, shipping.NewLock("nightly"), func(context.Context) error { return nil })
	})
	fmt.Println(err)
	// Output: <nil>
}

// The warnings and errors of the client go to your logger instead of slog.Default.
func ExampleWithLogger() {
	ctx := context.Background()
	withoutTime := func(_ []string, a slog.Attr) slog.Attr { // your handler adds the time
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	c, err := client.Open(ctx, "redis://"+addr, client.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	imports := c.NewLock("import", lock.WithMaxHold(200*time.Millisecond))
	err = lock.Do(ctx, imports, func(ctx context.Context) error {
		<-ctx.Done() // it does not respond
		return context.Cause(ctx)
	})
	if !errors.Is(err, lock.ErrMaxHold) {
		log.Print(err)
	}
	// Output: level=ERROR msg="lock lost" lock=import mode=exclusive cause="maximum hold time reached (WithMaxHold)"
}

// A shorter lease frees the lock of a dead process sooner, and loses the lock sooner when Redis is unavailable.
func ExampleWithWatchdogTimeout() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithWatchdogTimeout(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("orders:42").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(time.Until(h.Until()) < 10*time.Second)
	fmt.Println(h.Unlock(ctx))
	// Output:
	// true
	// <nil>
}

// A client that does not register itself, and writes only the keys of its locks.
func ExampleWithoutRegistry() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithoutRegistry())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	orders := c.NewLock("orders:42")

	err = lock.Do(ctx, orders, func(ctx context.Context) error {
		state, err := orders.Inspect(ctx)
		if err != nil {
			return err
		}
		fmt.Println("its client is known:", state.Holders[0].Client.Known())
		return nil
	})
	fmt.Println(err)
	// Output:
	// its client is known: false
	// <nil>
}

// A cluster with Java clients before Redisson 3.22, which publish to all nodes.
func ExamplePubSub() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithPubSub(client.PubSubPlain))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	fmt.Println(client.PubSubPlain, lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil }))
	// Output: plain <nil>
}

// A process starts although its server is down. Each call returns ErrUnavailable until the server is up.
func ExampleWithLazyConnect() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:1", client.WithLazyConnect()) // no server listens there
	if err != nil {
		log.Fatal(err) // the URL or an option is wrong
	}
	defer c.Close(ctx)

	_, err = c.NewLock("orders:42").TryLock(ctx)
	fmt.Println(errors.Is(err, lock.ErrUnavailable))
	// Output: true
}
