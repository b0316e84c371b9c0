//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// The script in docs/operate/tool.md finds and force-unlocks a stuck lock.
func TestNight(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-cli"); err != nil {
		if os.Getenv("CI") != "" || os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
			t.Fatal("the script needs redis-cli, and must not be skipped here (CI or LEASEHOLD_REQUIRE_REDIS is set)")
		}
		t.Skip("NOT TESTED: the script needs redis-cli")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t)
	cmd := exec.Command("sh", "../../scripts/night.sh")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "LEASEHOLD_REDIS_URL="+s.URL())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(out)
	for _, want := range []string{
		"orders:42  plain  leasehold run on ", "waiters  1. leasehold run on ", ", runs import-orders", ", runs ship-orders",
		"unlocked; notification sent to the holder (leasehold run on ", "keeps running alongside the next holder", "The stuck process ended with 123", "unlock orders:42 --yes --operator alice --reason 'stuck, ticket 815'\n", "by alice: stuck, ticket 815", "It was notified ", "ship-orders runs", "bill-orders runs", "orders:42: free",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	t.Log(text)
	if left := keysLike(t, s, "*"); len(left) != 1 || left[0] != "leasehold_forced:{orders:42}" { // the audit record stays for a week
		t.Errorf("keys left: %q", left)
	}
}
