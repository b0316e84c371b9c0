package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Authority is a private certificate authority.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority with a new key.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{key: newKey(tb)}
	a.cert = a.sign(tb, &x509.Certificate{
		Subject:               pkix.Name{CommonName: "redistest"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}, a.key)
	return a
}

// Issue returns a certificate for 127.0.0.1, for a server as well as for a client.
func (a *Authority) Issue(tb testing.TB) tls.Certificate {
	tb.Helper()
	key := newKey(tb)
	cert := a.sign(tb, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "127.0.0.1"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// Config returns a client configuration that trusts the authority and presents the certificates.
func (a *Authority) Config(certificates ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, Certificates: certificates, MinVersion: tls.VersionTLS12}
}

func (a *Authority) sign(tb testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// StartTLS starts a server that also listens for TLS, at addr, with a certificate of the authority. It requires client
// certificates, unless config says otherwise. The methods of Server still use the other port.
func StartTLS(tb testing.TB, a *Authority, config ...string) (s *Server, addr string) {
	tb.Helper()
	needTLS(tb)
	files := a.arguments(tb)
	s = start(tb, func(s *Server) []string {
		return append(append([]string{"--tls-port", s.tlsPort()}, files...), s.alone()...)
	}, config...)
	return s, net.JoinHostPort("127.0.0.1", s.tlsPort())
}

// StartTLSSentinel starts a primary like StartTLS, without replicas, and one Sentinel, which uses TLS with its clients
// and with the primary. addr is the Sentinel's; its name for the primary is "primary".
func StartTLSSentinel(tb testing.TB, a *Authority) (addr string) {
	tb.Helper()
	_, primary := StartTLS(tb, a)
	files := a.arguments(tb)
	conf := sentinelConf(tb, primary, 1)
	s := start(tb, func(s *Server) []string {
		return append([]string{
			conf, "--sentinel", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
			"--tls-port", s.tlsPort(), "--tls-replication", "yes", // for its connections to the primary
		}, files...)
	})
	waitUntil(tb, "the Sentinel sees the primary", func() bool {
		return pairs(s.Do(tb, "SENTINEL", "MASTER", PrimaryName))["flags"] == "master"
	})
	return net.JoinHostPort("127.0.0.1", s.tlsPort())
}

// StartTLSCluster starts a cluster of masters without replicas, whose nodes use TLS with their clients and with each
// other. addrs are for clients; the methods of Cluster still use the other ports.
func StartTLSCluster(tb testing.TB, a *Authority) (c *Cluster, addrs []string) {
	tb.Helper()
	needTLS(tb)
	c = &Cluster{}
	for range clusterMasters {
		files := a.arguments(tb)
		n := start(tb, func(s *Server) []string {
			return append([]string{
				"--port", strconv.Itoa(s.port), "--tls-port", s.tlsPort(), "--bind", "127.0.0.1", "--save", "", "--dir", s.dir,
				"--cluster-enabled", "yes", "--tls-cluster", "yes",
				"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
			}, files...)
		})
		c.Nodes = append(c.Nodes, n)
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", n.tlsPort()))
	}
	c.join(tb, addrs)
	c.WaitUntilWell(tb)
	c.setNodeTimeout(tb, nodePatience)
	return c, addrs
}

// Files writes PEM files: the certificate of the authority, and a certificate that it issues, with its key.
func (a *Authority) Files(tb testing.TB) (authority, cert, key string) {
	tb.Helper()
	issued := a.Issue(tb)
	secret, err := x509.MarshalPKCS8PrivateKey(issued.PrivateKey)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	return file("ca.pem", "CERTIFICATE", a.cert.Raw),
		file("cert.pem", "CERTIFICATE", issued.Certificate[0]),
		file("key.pem", "PRIVATE KEY", secret)
}

// tlsPort returns the port for TLS. It is derived from the port that the server has claimed, so no other server of the
// tests uses it. The port of a cluster's bus is 10000 higher.
func (s *Server) tlsPort() string { return strconv.Itoa(s.port + 10000) }

// arguments returns the arguments of a server with a certificate of the authority, which requires client certificates.
func (a *Authority) arguments(tb testing.TB) []string {
	tb.Helper()
	authority, cert, key := a.Files(tb)
	return []string{
		"--tls-cert-file", cert,
		"--tls-key-file", key,
		"--tls-ca-cert-file", authority,
		"--tls-auth-clients", "yes",
	}
}

// needTLS skips a test under make versions if the server was built without TLS. A server built with TLS complains about
// the missing key.
func needTLS(tb testing.TB) {
	tb.Helper()
	if os.Getenv("LEASEHOLD_VERSIONS") == "" {
		return
	}
	out, _ := exec.Command(find(tb), "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nowhere").CombinedOutput()
	if !strings.Contains(string(out), "No tls-key-file configured") {
		tb.Skip("this build of the server has no TLS")
	}
}
