package admin

import "testing"

// A list accepts the same hold counts as the scripts: a lock that the scripts reject cannot be inspected.
func TestCounts(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "0": true, "9223372036854775807": true, "+1": false, "-0": false, "-1": false, "": false, "1_0": false, "1e3": false, " 1": false, "99999999999999999999": false} {
		if got := counts(value); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
