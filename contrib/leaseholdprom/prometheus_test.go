package leaseholdprom_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/observetest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// program returns the path of a program of Prometheus, from the directory $LEASEHOLD_PROMETHEUS or
// from the PATH. If there is none, the test is skipped. It fails instead if $CI is set or
// $LEASEHOLD_REQUIRE_PROMETHEUS is 1.
func program(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("LEASEHOLD_PROMETHEUS"); dir != "" {
		return filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if testing.Short() {
		t.Skip("with -short nothing runs Prometheus")
	}
	text := fmt.Sprintf("%v: install Prometheus, or name the directory of its programs in LEASEHOLD_PROMETHEUS", err)
	if os.Getenv("CI") != "" || os.Getenv("LEASEHOLD_REQUIRE_PROMETHEUS") == "1" {
		t.Fatal(text)
	}
	t.Skip(text)
	return ""
}

// According to promtool, the alert rules are well-formed, do not fire without a fault, and fire
// when they should.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// A real Prometheus scrapes the metrics of locks with every kind of event. Each panel of the
// dashboard and each query of the guide then returns data, and the alerts without a delay fire.
func TestBoard(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	app := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(app.Close)
	p := startPrometheus(t, strings.TrimPrefix(app.URL, "http://"))
	p.until(t, "the service is scraped", func() bool { return len(p.query(t, `up{job="shop"} == 1`)) > 0 })

	observetest.Play(t, client.WithObserver(m.Observer()))

	all := panels(t)
	guide, err := os.ReadFile("../../docs/guides/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```promql\n(.*?)^```$").FindAllSubmatch(guide, -1) {
		all["docs/guides/metrics.md"] = append(all["docs/guides/metrics.md"], string(block[1]))
	}
	if n := len(all["docs/guides/metrics.md"]); n != 3 {
		t.Errorf("the guide has %d queries, want 3", n)
	}
	for title, queries := range all {
		for _, q := range queries {
			p.until(t, title+": "+q, func() bool { return len(p.query(t, q)) > 0 })
		}
	}
	rules, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, bucket, _ := strings.Cut(string(rules), "renewal_margin_seconds_bucket{") // Prometheus 2 and 3 write the label differently
	bucket, _, _ = strings.Cut(bucket, "}")
	p.until(t, "the bucket of LeaseholdRenewalMarginLow", func() bool {
		return len(p.query(t, "leasehold_lock_renewal_margin_seconds_bucket{"+bucket+"}")) > 0
	})
	for _, alert := range []string{"LeaseholdLockLost", "LeaseholdHoldAbandoned"} {
		p.until(t, alert, func() bool {
			return len(p.query(t, fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",job="shop"}`, alert))) > 0
		})
	}
}

// panels returns the queries of the dashboard by panel, as Grafana sends them for all jobs and
// kinds.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	queries := make(map[string][]string)
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			queries[p.Title] = append(queries[p.Title], strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$kind", ".*").Replace(target.Expr))
		}
	}
	if len(queries) < 10 {
		t.Fatalf("the board has %d panels", len(queries))
	}
	return queries
}

// Each metric is on the dashboard and in the documentation, and each alert links to its entry in the
// runbook.
func TestBoard_isComplete(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	board, rules, docs := read("dashboard.json"), read("alerts.yaml"), read("../../docs/operate/telemetry.md")
	registry := prometheus.NewRegistry()
	m := newMetrics(t)
	registry.MustRegister(m)
	names := make(chan *prometheus.Desc, 100)
	m.Describe(names)
	close(names)
	n := 0
	for d := range names {
		n++
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		for where, text := range map[string]string{"the board": board, "docs/operate/telemetry.md": docs} {
			if !strings.Contains(text, name) {
				t.Errorf("%s is not in %s", name, where)
			}
		}
	}
	if n != 13 {
		t.Errorf("%d metrics, want 13", n)
	}
	const page = "https://github.com/leasehold-go/leasehold/blob/main/docs/operate/runbook.md#"
	runbook := read("../../docs/operate/runbook.md")
	for block := range strings.SplitSeq(rules, "- alert: ") {
		alert, block, is := strings.Cut(block, "\n")
		if !is || !strings.Contains(block, "expr: ") {
			continue // the header of the file
		}
		if !strings.Contains(docs, "| `"+alert+"` |") || !strings.Contains(runbook, "\n### "+alert+"\n") {
			t.Errorf("%s is not in docs/operate/telemetry.md and the runbook", alert)
		}
		if url := "runbook_url: " + page + strings.ToLower(alert); !strings.Contains(block, url+"\n") {
			t.Errorf("%s does not lead to its entry in the runbook: %s", alert, url)
		}
	}
}

// server is a running Prometheus.
type server struct{ url string }

// startPrometheus starts a Prometheus with the alert rules that scrapes target as the job shop.
func startPrometheus(t *testing.T, target string) *server {
	t.Helper()
	binary := program(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [%q]
scrape_configs: [{job_name: shop, static_configs: [{targets: [%q]}]}]
`, rules, target)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 { // another program may use the port first
		if p := launch(t, binary, dir); p != nil {
			return p
		}
	}
	t.Fatal("no port is free")
	return nil
}

// launch starts a Prometheus with the configuration in dir, and waits until it is ready. It returns
// nil if the port was in use.
func launch(t *testing.T, binary, dir string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // for Prometheus
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		_ = log.Close()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	p := &server{"http://" + address}
	for p.get(t.Context(), "/-/ready", nil) != nil {
		select {
		case <-exited:
			text, _ := os.ReadFile(log.Name())
			if !strings.Contains(string(text), "address already in use") {
				t.Fatalf("prometheus ended: %s", text)
			}
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
	return p
}

// get reads path, and decodes the response into to unless to is nil.
func (p *server) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	req.Close = true // keep no connection open
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", resp.Status, body)
	case to == nil:
		return nil
	}
	return json.Unmarshal(body, to)
}

// query returns the current series of q. An invalid query fails the test.
func (p *server) query(t *testing.T, q string) []json.RawMessage {
	t.Helper()
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	if err := p.get(t.Context(), "/api/v1/query?query="+url.QueryEscape(q), &answer); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return answer.Data.Result
}

// until waits until ok reports true.
func (p *server) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}
