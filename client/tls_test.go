package client_test

import (
	"crypto/x509"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// A rediss URL requires TLS.
func TestOpen_tls(t *testing.T) {
	_, addr := redistest.StartTLS(t, redistest.NewAuthority(t), "--tls-auth-clients", "no")
	url := "rediss://" + addr

	c, err := client.Open(t.Context(), url+"?skip_verify=true")
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewLock("orders").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var unknown x509.UnknownAuthorityError
	if _, err := client.Open(t.Context(), url); !errors.As(err, &unknown) {
		t.Errorf("a server with an unknown certificate: %v", err)
	}
}

// The client also uses TLS for the Sentinels of a rediss URL. Otherwise an attacker could impersonate them and redirect
// clients, with their locks and password, to any server.
func TestOpen_tlsToSentinels(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			close(received)
			return
		}
		defer conn.Close()
		first := make([]byte, 3)
		_, _ = io.ReadFull(conn, first) // the check below detects a short read
		received <- first
	}()
	if c, err := client.Open(t.Context(), "rediss://"+l.Addr().String()+"?master_set=primary"); err == nil {
		t.Error("there is no Sentinel")
		_ = c.Close(t.Context())
	}
	// The record starts with its type, handshake, and a version 3.x.
	if first := <-received; len(first) != 3 || first[0] != 0x16 || first[1] != 3 {
		t.Errorf("the first bytes to a Sentinel are %q, want those of a TLS handshake", first)
	}
}

// Options that an application adds to those of a URL apply both to the Sentinels and to the servers they monitor.
func TestParseURL_tlsBehindSentinels(t *testing.T) {
	authority := redistest.NewAuthority(t)
	option, err := client.ParseURL("rediss://" + redistest.StartTLSSentinel(t, authority) + "?master_set=primary")
	if err != nil {
		t.Fatal(err)
	}
	if rdb, err := rueidis.NewClient(option); err == nil {
		t.Error("a client without the certificates of the Sentinel was accepted")
		rdb.Close()
	}
	config := authority.Config(authority.Issue(t))
	option.TLSConfig.RootCAs, option.TLSConfig.Certificates = config.RootCAs, config.Certificates
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	c, err := client.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewLock("orders").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
