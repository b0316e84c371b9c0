package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make vuln fails for a vulnerability that our code calls, passes for one that it does not call, and fails without a
// database.
func TestVuln(t *testing.T) {
	if os.Getenv("CI") == "" {
		t.Skip("it compiles govulncheck; CI runs it")
	}
	// A database (https://go.dev/security/vuln/database) with one made-up vulnerability.
	database := func(symbol string) string {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"index/db.json":      `{"modified": "2026-01-01T00:00:00Z"}`,
			"index/modules.json": `[{"path": "github.com/redis/rueidis", "vulns": [{"id": "GO-0000-0001", "modified": "2026-01-01T00:00:00Z"}]}]`,
			"ID/GO-0000-0001.json": fmt.Sprintf(`{"schema_version": "1.3.1", "id": "GO-0000-0001", "modified": "2026-01-01T00:00:00Z", "summary": "Invented",
				"affected": [{"package": {"name": "github.com/redis/rueidis", "ecosystem": "Go"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
					"ecosystem_specific": {"imports": [{"path": "github.com/redis/rueidis", "symbols": [%q]}]}}],
				"database_specific": {"url": "https://pkg.go.dev/vuln/GO-0000-0001"}}`, symbol),
		} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	for _, c := range []struct {
		database, want string
		green          bool
	}{
		{database("NewClient"), "Vulnerability #1: GO-0000-0001", false},
		{database("BinaryString"), "No vulnerabilities found", true},
		{filepath.Join(t.TempDir(), "none"), "Is there a way to file://", false},
	} {
		out, err := exec.Command("make", "-C", "../..", "vuln", "MODULES=./", "GOVULNDB=file://"+c.database).CombinedOutput()
		if (err == nil) != c.green || !strings.Contains(string(out), c.want) {
			t.Errorf("no %q: %v\n%s", c.want, err, out)
		}
	}
}
