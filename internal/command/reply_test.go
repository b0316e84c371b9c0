package command

import (
	"io"
	"testing"
)

// Errors that need an operator are refused: the server does not accept the user, or the user lacks a
// permission. No other error is.
func TestRefused(t *testing.T) {
	for text, want := range map[string]bool{
		"NOAUTH Authentication required.":                                                     true,
		"WRONGPASS invalid username-password pair":                                            true,
		"NOPERM User x has no permissions to run the 'hset' command":                          true,
		"ERR The user executing the script can't run this command or subcommand script: 14fa": true,
		"LOADING Redis is loading the dataset in memory":                                      false,
		"OOM command not allowed when used memory > 'maxmemory'.":                             false,
		"ERR syntax error": false,
	} {
		if got := Refused(refusal(t, text)); got != want {
			t.Errorf("%q is a refusal: %t", text, got)
		}
	}
	if Refused(nil) || Refused(io.EOF) {
		t.Error("a refusal, and nobody refused anything")
	}
}
