package docs

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

var update = flag.Bool("update", false, "write the files and tables that tests compare with")

// The tables of reference/errors.md match the tables that the library uses.
func TestErrorReplies(t *testing.T) {
	const file = "reference/errors.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for name, want := range map[string]string{"replies": replies(retry.Replies, "a server"), "replies of proxies": replies(retry.ProxyReplies, "a proxy"), "errors": kinds()} {
		begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
		before, rest, found := strings.Cut(text, begin)
		_, after, ends := strings.Cut(rest, end)
		if !found || !ends {
			t.Fatalf("%s has no place for the table of %s", file, name)
		}
		text = before + begin + want + end + after
	}
	switch {
	case text == string(page):
	case *update:
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	default:
		t.Errorf("the tables of %s are out of date: go test ./docs -run TestErrorReplies -update", file)
	}
}

// cells returns the last cells of a row.
func cells(f retry.Fault) string {
	wait, single := "ends", "the reply itself"
	switch {
	case f.Lasts:
		wait, single = "continues", "immediately: "
	case f.Temporary:
		wait, single = "continues", "retries, then: "
	case f.Denied:
		single = "the reply itself, with advice"
	case f.Is != nil:
		single = ""
	}
	for name, err := range map[string]error{"ErrUnavailable": lock.ErrUnavailable, "ErrWrongType": lock.ErrWrongType, "ErrClosed": lock.ErrClosed} {
		if errors.Is(f.Is, err) {
			single += "`lock." + name + "`"
		}
	}
	return fmt.Sprintf("%v | %s | %s |\n", f.Executed, wait, single)
}

func replies(rows []retry.Row, sender string) string {
	var b strings.Builder
	b.WriteString("| reply | " + sender + " sends it when | executed | a wait | a single attempt |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		code := "`" + r.Match + "`"
		if r.Match != strings.ToUpper(r.Match) && strings.HasPrefix(r.Reply, "ERR ") {
			code = "`ERR` … " + code + " …"
		}
		fmt.Fprintf(&b, "| %s | %s | %s", code, r.When, cells(r.Fault))
	}
	return b.String()
}

func kinds() string {
	var b strings.Builder
	b.WriteString("| error | executed | a wait | a single attempt |\n|---|---|---|---|\n")
	for _, k := range retry.Kinds {
		fmt.Fprintf(&b, "| %s | %s", k.What, strings.Replace(cells(k.Fault), "the reply itself", "the error itself", 1))
	}
	return b.String()
}
