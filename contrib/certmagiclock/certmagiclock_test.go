package certmagiclock_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/certmagiclock"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/multilock"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// bucket is a storage whose configuration has a password, which its String omits.
type bucket struct {
	*certmagic.FileStorage
	Password string
}

func (bucket) String() string { return "bucket without its password" }

// certmagic logs its storage. The log contains the String of the wrapped storage, and none of its fields.
func TestStorage_inALog(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	files := &certmagic.FileStorage{Path: t.TempDir()}
	secret := struct { // without String
		certmagic.Storage
		Password string
	}{files, "hunter2"}
	for want, inner := range map[string]certmagic.Storage{"bucket without its password": bucket{files, "hunter2"}, "struct {": secret} {
		var out bytes.Buffer
		logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.InfoLevel))
		s := certmagiclock.New(inner, func(name string) lock.Locker { return c.NewLock(name) })
		if err := certmagic.CleanStorage(t.Context(), s, certmagic.CleanStorageOptions{Logger: logger}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "hunter2") {
			t.Errorf("%s", out.String())
		}
	}
}

// authority issues certificates and counts them.
type authority struct {
	t            *testing.T
	key          *ecdsa.PrivateKey
	root         *x509.Certificate
	issued, busy atomic.Int32
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return &authority{t: t, key: key, root: root}
}

func (a *authority) IssuerKey() string { return "test" }

func (a *authority) Issue(_ context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if n := a.busy.Add(1); n != 1 {
		a.t.Errorf("%d servers ask for the certificate at once", n)
	}
	defer a.busy.Add(-1)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(a.issued.Add(1)) + 1), DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(23 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.root, csr.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// storage returns the shared disk of all servers, with the locks of a separate client.
func storage(t *testing.T, redis *redistest.Server, dir string) *certmagiclock.Storage {
	c, err := client.New(redis.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return certmagiclock.New(&certmagic.FileStorage{Path: dir}, func(name string) lock.Locker {
		return c.NewLock("certmagic:" + name)
	})
}

// If four servers need a certificate at the same time, one obtains it, and all of them have it.
func TestStorage_obtain(t *testing.T) {
	redis, dir, issuer := redistest.Start(t), t.TempDir(), newAuthority(t)
	var wg sync.WaitGroup
	for range 4 {
		s := storage(t, redis, dir)
		var config *certmagic.Config
		cache := certmagic.NewCache(certmagic.CacheOptions{
			GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
			Logger:           zap.NewNop(),
		})
		t.Cleanup(cache.Stop)
		config = certmagic.New(cache, certmagic.Config{
			Storage: s, Issuers: []certmagic.Issuer{issuer}, Logger: zap.NewNop(),
			OCSP: certmagic.OCSPConfig{DisableStapling: true},
		})
		wg.Go(func() {
			if err := config.ObtainCertSync(t.Context(), "example.com"); err != nil {
				t.Error(err)
			}
			if _, err := config.CacheManagedCertificate(t.Context(), "example.com"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := issuer.issued.Load(); n != 1 {
		t.Errorf("%d certificates were issued", n)
	}
	if locks := redis.LockKeys(t); len(locks) != 0 {
		t.Errorf("locks are left: %v", locks)
	}
}

// The locks of two servers exclude each other, as certmagic's interfaces require.
func TestStorage_locks(t *testing.T) {
	redis, dir, ctx := redistest.Start(t), t.TempDir(), t.Context()
	a, b := storage(t, redis, dir), storage(t, redis, dir)
	if err := a.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.TryLock(ctx, "x"); ok || err != nil {
		t.Errorf("while the other one has it: %v, %v", ok, err)
	}
	if ok, err := b.TryLock(ctx, "y"); !ok || err != nil {
		t.Errorf("another name: %v, %v", ok, err)
	}
	if err := b.Unlock(ctx, "x"); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
		t.Errorf("unlock by another server: %v", err)
	}
	if err := b.RenewLockLease(ctx, "x", time.Hour); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("renewal by another server: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := b.Lock(short, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ends: %v", err)
	}
	if err := a.RenewLockLease(ctx, "x", time.Hour); err != nil {
		t.Error(err)
	}
	if left := redis.Do(t, "PTTL", "certmagic:x"); func() bool { ms, err := left.AsInt64(); return err != nil || ms > 60_000 }() {
		t.Errorf("a server that dies now keeps the others waiting for %v ms", left.String())
	}
	waits := make(chan error)
	go func() { waits <- b.Lock(ctx, "x") }()
	if err := a.Unlock(ctx, "x"); err != nil {
		t.Error(err)
	}
	if err := <-waits; err != nil {
		t.Errorf("the next one: %v", err)
	}

	redis.Do(t, "DEL", "certmagic:x") // as a failover would
	if err := b.Unlock(ctx, "x"); !errors.Is(err, lock.ErrLost) {
		t.Errorf("after a loss: %v", err)
	}
	if err := b.Unlock(ctx, "y"); err != nil {
		t.Error(err)
	}
}

// RenewLockLease acquires a lost lock again, unless another server has it.
func TestStorage_loss(t *testing.T) {
	server := locktest.NewServer(t)
	c, other := server.Client(t), server.Client(t).NewLock("x")
	s := certmagiclock.New(nil, func(name string) lock.Locker { return c.NewLock(name) })
	lose := func() {
		t.Helper()
		if _, err := c.NewLock("x").ForceUnlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	lose()
	if err := s.RenewLockLease(t.Context(), "x", time.Hour); err != nil {
		t.Errorf("RenewLockLease after a loss: %v", err)
	}
	if _, err := other.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("another server, after RenewLockLease: %v", err)
	}
	lose()
	h, err := other.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.RenewLockLease(t.Context(), "x", time.Hour); !errors.Is(err, lock.ErrForceUnlocked) || !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("RenewLockLease while another server has the lock: %v", err)
		}
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.RenewLockLease(t.Context(), "x", time.Hour); err != nil {
		t.Errorf("RenewLockLease after the other server: %v", err)
	}
	if err := s.Unlock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}

	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	lose()
	if err := s.Unlock(t.Context(), "x"); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock after a loss: %v", err)
	}

	silent, err := client.Open(t.Context(), "redis://127.0.0.1:1", client.WithLazyConnect()) // no server listens there
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close(context.Background())
	s = certmagiclock.New(nil, func(name string) lock.Locker { return silent.NewLock(name) })
	if ok, err := s.TryLock(t.Context(), "x"); ok || !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("without Redis: %v, %v", ok, err)
	}
}

// A goroutine that has lost the lock releases its own hold, and not the hold of the goroutine of this server that has the lock
// now.
func TestStorage_lossBesideAnother(t *testing.T) {
	server, ctx, lost := locktest.NewServer(t), t.Context(), make(chan struct{})
	c, other := server.Client(t, client.WithObserver(lock.Observer{Lost: func(context.Context, lock.Event) { close(lost) }})), server.Client(t)
	s := certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, func(name string) lock.Locker { return c.NewLock(name) })
	if err := s.Lock(ctx, "x"); err != nil { // one goroutine, which loses the lock
		t.Fatal(err)
	}
	if _, err := other.NewLock("x").ForceUnlock(ctx); err != nil {
		t.Fatal(err)
	}
	<-lost
	if err := s.Lock(ctx, "x"); err != nil { // another goroutine
		t.Fatal(err)
	}
	if err := s.RenewLockLease(ctx, "x", time.Hour); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the first one asks, and is not told: %v", err)
	}
	if err := s.Unlock(ctx, "x"); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the first one unlocks: %v", err)
	}
	if _, err := other.NewLock("x").TryLock(ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("a third one, while the second has the lock: %v", err)
	}
	if err := s.RenewLockLease(ctx, "x", time.Hour); err != nil {
		t.Errorf("the second one asks: %v", err)
	}
	if err := s.Unlock(ctx, "x"); err != nil {
		t.Errorf("the second one unlocks: %v", err)
	}
	if err := s.Unlock(ctx, "x"); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
		t.Errorf("after both: %v", err)
	}
}

// certmagic calls Unlock when it is done, and its context may be canceled long before that. The lock is held until Unlock.
func TestStorage_heldUntilUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := locktest.NewServer(t)
		one := func() *certmagiclock.Storage {
			c := redis.Client(t)
			return certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, func(name string) lock.Locker { return c.NewLock(name) })
		}
		s, other := one(), one()
		for name, take := range map[string]func(context.Context) error{
			"Lock": func(ctx context.Context) error { return s.Lock(ctx, "example.com") },
			"TryLock": func(ctx context.Context) error {
				_, err := s.TryLock(ctx, "example.com")
				return err
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			if err := take(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(10 * time.Minute)
			if err := s.RenewLockLease(ctx, "example.com", time.Hour); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if ok, err := other.TryLock(t.Context(), "example.com"); ok || err != nil {
				t.Errorf("%s: another server has it: %v, %v", name, ok, err)
			}
			if err := s.Unlock(ctx, "example.com"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if ok, err := other.TryLock(t.Context(), "example.com"); !ok || err != nil {
				t.Errorf("%s: after Unlock: %v, %v", name, ok, err)
			}
			if err := other.Unlock(t.Context(), "example.com"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Goroutines with the context of one hold exclude each other. They share an owner, but certmagic expects a lock that is not
// reentrant.
func TestStorage_contextOfAHold(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	leader, err := c.NewLock("leader").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Unlock(context.Background())
	s := certmagiclock.New(nil, func(name string) lock.Locker { return c.NewLock(name) })
	if ok, err := s.TryLock(leader.Context(), "example.com"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := s.TryLock(leader.Context(), "example.com"); ok || err != nil {
		t.Errorf("TryLock of another goroutine: %v, %v", ok, err)
	}
	ctx, cancel := context.WithTimeout(leader.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Lock(ctx, "example.com"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock of another goroutine: %v", err)
	}
	if err := s.Unlock(t.Context(), "example.com"); err != nil {
		t.Error(err)
	}
}

// A goroutine that is paused just after its Lock, and loses the lock, releases its own hold, and not the hold of the goroutine that
// has acquired the lock since.
func TestStorage_lossAfterLock(t *testing.T) {
	server := locktest.NewServer(t)
	l := &paused{Locker: server.Client(t).NewLock("x"), acquired: make(chan lock.Hold), resume: make(chan bool)}
	s := certmagiclock.New(nil, func(string) lock.Locker { return l })
	locked := make(chan error)
	go func() { locked <- s.Lock(t.Context(), "x") }()
	lost := <-l.acquired
	if _, err := server.Client(t).NewLock("x").ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-lost.Context().Done()
	if ok, err := s.TryLock(t.Context(), "x"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	l.resume <- true
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	if err := s.RenewLockLease(t.Context(), "x", time.Minute); !errors.Is(err, lock.ErrLost) {
		t.Errorf("RenewLockLease: %v", err)
	}
	if err := s.Unlock(t.Context(), "x"); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the first Unlock: %v", err)
	}
	if err := s.Unlock(t.Context(), "x"); err != nil {
		t.Errorf("the second Unlock: %v", err)
	}
}

// paused is a Locker whose Lock returns only after resume.
type paused struct {
	lock.Locker
	acquired chan lock.Hold
	resume   chan bool
}

func (l *paused) Lock(ctx context.Context) (lock.Hold, error) {
	h, err := l.Locker.Lock(ctx)
	l.acquired <- h
	<-l.resume
	return h, err
}

// An Unlock while RenewLockLease acquires the lock again leaves no lock behind.
func TestStorage_unlockDuringRenewLockLease(t *testing.T) {
	server := locktest.NewServer(t)
	l := server.Client(t).NewLock("x")
	var s *certmagiclock.Storage
	s = certmagiclock.New(nil, func(string) lock.Locker {
		return hooked{l, func() {
			if err := s.Unlock(t.Context(), "x"); !errors.Is(err, lock.ErrLost) {
				t.Errorf("Unlock: %v", err)
			}
		}}
	})
	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.RenewLockLease(t.Context(), "x", time.Hour); !errors.Is(err, lock.ErrLost) {
		t.Errorf("RenewLockLease: %v", err)
	}
	if err := s.Unlock(t.Context(), "x"); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
		t.Errorf("another Unlock: %v", err)
	}
	h, err := server.Client(t).NewLock("x").TryLock(t.Context())
	if err != nil {
		t.Fatalf("another server: %v", err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// hooked is a Locker whose TryLock calls before first.
type hooked struct {
	lock.Locker
	before func()
}

func (l hooked) TryLock(ctx context.Context) (lock.Hold, error) {
	l.before()
	return l.Locker.TryLock(ctx)
}

// A multi-lock that has lost one of its locks still has the others. RenewLockLease acquires all of them again.
func TestStorage_lossOfOneOfSeveral(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	s := certmagiclock.New(nil, func(string) lock.Locker { return multilock.New(c.NewLock("a"), c.NewLock("b")) })
	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewLock("b").ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.RenewLockLease(t.Context(), "x", time.Hour); err != nil {
		t.Errorf("RenewLockLease: %v", err)
	}
	if err := s.Unlock(t.Context(), "x"); err != nil {
		t.Error(err)
	}
}

// failsOnce is an authority that rejects the first request.
type failsOnce struct {
	*authority
	first func()
}

func (a *failsOnce) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if first := a.first; first != nil {
		a.first = nil
		first()
		return nil, errors.New("try again later")
	}
	return a.authority.Issue(ctx, csr)
}

// A lock that is lost between two attempts of certmagic does not end them.
func TestStorage_lossBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locktest.NewServer(t).Client(t).NewLock("example.com")
		s := certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, func(string) lock.Locker { return l })
		issuer := &failsOnce{newAuthority(t), func() {
			if _, err := l.ForceUnlock(t.Context()); err != nil {
				t.Error(err)
			}
		}}
		var config *certmagic.Config
		cache := certmagic.NewCache(certmagic.CacheOptions{
			GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
			Logger:           zap.NewNop(),
		})
		defer cache.Stop()
		config = certmagic.New(cache, certmagic.Config{
			Storage: s, Issuers: []certmagic.Issuer{issuer}, Logger: zap.NewNop(),
			OCSP: certmagic.OCSPConfig{DisableStapling: true},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // certmagic retries for 30 days
		defer cancel()
		if err := config.ObtainCertAsync(ctx, "example.com"); err != nil || issuer.issued.Load() != 1 {
			t.Errorf("%v, and %d certificates were issued", err, issuer.issued.Load())
		}
		if state, err := l.Inspect(t.Context()); err != nil || len(state.Holders) != 0 {
			t.Errorf("afterwards: %+v, %v", state, err)
		}
	})
}

// wrapping returns holds that cannot be compared.
type wrapping struct {
	lock.Locker
	check func() // called by Err of the holds
}

func (l wrapping) Lock(ctx context.Context) (lock.Hold, error) {
	h, err := l.Locker.Lock(ctx)
	return wrapped{h, l.check}, err
}

type wrapped struct {
	lock.Hold
	check func()
}

func (h wrapped) Err() error {
	h.check()
	return h.Hold.Err()
}

// The holds of a Locker need not be comparable.
func TestStorage_wrappedHold(t *testing.T) {
	l := wrapping{locktest.NewServer(t).Client(t).NewLock("x"), func() {}}
	s := certmagiclock.New(nil, func(string) lock.Locker { return l })
	if err := s.Lock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlock(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	if err := s.Unlock(t.Context(), "x"); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("another Unlock: %v", err)
	}
}

// A hold that detects its loss calls the log handler of the application, which may call RenewLockLease.
func TestStorage_errCallsRenewLockLease(t *testing.T) {
	var s *certmagiclock.Storage
	nested := false // guarded by the lock
	l := wrapping{locktest.NewServer(t).Client(t).NewLock("x"), func() {
		if !nested {
			nested = true
			if err := s.RenewLockLease(t.Context(), "x", time.Hour); err != nil {
				t.Error(err)
			}
		}
	}}
	s = certmagiclock.New(nil, func(string) lock.Locker { return l })
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := errors.Join(s.Lock(t.Context(), "x"), s.Unlock(t.Context(), "x")); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("Unlock waits for RenewLockLease")
	}
}

// Of two concurrent Unlocks, each releases its own hold. Here, one runs while the other looks up its hold.
func TestStorage_unlockDuringUnlock(t *testing.T) {
	server, ctx := locktest.NewServer(t), t.Context()
	c, other := server.Client(t), server.Client(t).NewLock("x")
	check := func() {}
	l := wrapping{c.NewLock("x"), func() { check() }}
	s := certmagiclock.New(nil, func(string) lock.Locker { return l })
	if err := s.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewLock("x").ForceUnlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	check = func() {
		check = func() {}
		if err := s.Unlock(ctx, "x"); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the Unlock of the lost hold: %v", err)
		}
	}
	if err := s.Unlock(ctx, "x"); err != nil {
		t.Errorf("the other Unlock: %v", err)
	}
	h, err := other.TryLock(ctx)
	if err != nil {
		t.Fatalf("after both: %v", err)
	}
	if err := h.Unlock(ctx); err != nil {
		t.Error(err)
	}
}
