package docs

import (
	"regexp"
	"strings"
	"testing"
)

// wrong are words that have a better one in every sentence of a page for users, with that one.
var wrong = map[string]string{
	`gives? back|given back`:            "release",
	`silent|silence`:                    "unavailable, does not respond",
	`no answer|answers?`:                "reply, response",
	`is told|hears?`:                    "is notified, detects",
	`stands?`:                           "is, is stored, is queued",
	`beside|besides`:                    "next to, in addition to",
	`anew|once more`:                    "again",
	`at the (most|least)`:               "at most, at least",
	`the (least|most) is`:               "must be at least, at most",
	`so many`:                           "at most N",
	`also (if|when)`:                    "even if",
	`of its own`:                        "its own",
	`that of|those that|the one before`: "the noun again",
	`nobody|somebody|anybody`:           "no client, a client",
	`mend(s|ed|ing)?`:                   "fix",
	`patience`:                          "waiter timeout",
	`is over|runs? out|ran out`:         "expires, is canceled",
	`looks? at`:                         "checks",
	`frozen`:                            "paused, unresponsive",
	`carried out`:                       "executed",
	`by force|taken away`:               "force-unlock",
	`rights`:                            "permissions",
	`cancell(ed|ing)|initialis\w*|behaviour|licences?`: "the American spelling",
}

// allowed are phrases in which such a word is right, with the reason.
var allowed = map[string]string{
	"| rights |": "a check, as the doctor prints it",
}

// userPage is whether path is a page for users.
func userPage(path string) bool {
	return path == "README.md" || path == "SECURITY.md" || strings.HasPrefix(path, "docs/") && !strings.HasPrefix(path, "docs/evidence/") && !strings.HasPrefix(path, "docs/internals/")
}

var skipped = regexp.MustCompile(`\]\([^)]*\)|(?ms:^<!-- (?:replies|errors) -->$.*?^<!-- end of)`)

// prose returns text without what a program prints: the blocks without a language, and the log messages of the runbook.
func prose(text string) string {
	var b strings.Builder
	block, skip := false, false
	for line := range strings.Lines(text) {
		if language, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			block = !block
			skip = block && (language == "" || language == "text")
		}
		if !skip && !strings.HasPrefix(line, "### Log: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// wrongWords returns the wrong words of text. It skips what a program prints, links, and tables that have a test.
func wrongWords(text string) (found []string) {
	text = skipped.ReplaceAllString(prose(text), "")
	for phrase := range allowed {
		text = strings.ReplaceAll(text, phrase, "")
	}
	for words, better := range wrong {
		for _, w := range regexp.MustCompile(`(?i)\b(`+words+`)\b.{0,30}`).FindAllString(text, -1) {
			found = append(found, w+"…: write "+better)
		}
	}
	return found
}

// The pages for users have no words that are always wrong.
func TestWords(t *testing.T) {
	n := 0
	for path, text := range pages(t) {
		if !userPage(path) {
			continue
		}
		n++
		for _, w := range wrongWords(text) {
			t.Errorf("%s: %s", path, w)
		}
	}
	if n < 30 {
		t.Errorf("%d pages for users were found", n)
	}
	if found := wrongWords("The holder is told.\n```sh\nls\n```\n\n```\nsilent\n```\nA lease runs out.\n"); len(found) != 2 {
		t.Errorf("the test finds %q", found)
	}
}
