package guides

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// withCertificate works on a server that asks for a certificate. The tests of package client
// connect to one.
func withCertificate(authorities *x509.CertPool, mine tls.Certificate, work func(*client.Client) error) error {
	option, err := client.ParseURL("rediss://redis.example:6379")
	if err != nil {
		return err
	}
	option.TLSConfig.RootCAs = authorities
	option.TLSConfig.Certificates = []tls.Certificate{mine}
	c, err := client.OpenWithOption(context.Background(), option)
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	return work(c)
}

// There is no such server, and the error comes before any work.
func TestWithCertificate(t *testing.T) {
	err := withCertificate(x509.NewCertPool(), tls.Certificate{}, func(c *client.Client) error {
		t.Error("it works")
		return lock.Do(t.Context(), c.NewLock("never"), func(context.Context) error { return nil })
	})
	if err == nil {
		t.Error("no error")
	}
}
