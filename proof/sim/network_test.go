package sim

import (
	"strings"
	"testing"
	"time"
)

// A message is delivered once; with a fault, never, later, or a second time later.
func TestMessages(t *testing.T) {
	const late = 300 * time.Millisecond
	plan := Plan{
		Seed: 1, Clients: 2, Lease: lease, Rate: 1, Near: time.Millisecond, Far: 2 * time.Millisecond,
		Locks: []Lock{{Kind: "plain"}},
		Actors: []Actor{ // the release notifies the other client
			{Client: 0, Ops: []Op{{Do: "lock", Hold: 100 * time.Millisecond}}},
			{Client: 1, Ops: []Op{{Do: "lock", After: 20 * time.Millisecond, Hold: 2 * late}}},
		},
	}
	for _, test := range []struct {
		what string
		want []time.Duration // approximate delivery times of the message, relative to the release
	}{
		{"", []time.Duration{0}},
		{DropMessage, nil},
		{DelayMessage, []time.Duration{late}},
		{DoubleMessage, []time.Duration{0, late}},
	} {
		if plan.Faults = nil; test.what != "" {
			plan.Faults = []Fault{{What: test.what, Client: 1, Nth: 1, For: late}}
		}
		r := Play(t, plan, true)
		if len(r.Wrong) > 0 {
			t.Errorf("%s: %v", test.what, r.Wrong)
		}
		var came []time.Duration
		var released time.Duration
		for _, line := range r.History {
			words := strings.Fields(line)
			at, err := time.ParseDuration(words[0])
			if err != nil {
				t.Fatal(line)
			}
			if strings.Contains(line, "actor 0.0 of client 0: unlock") {
				released = at
			}
			if strings.HasPrefix(words[1], "1.") && words[2] == "<" && words[3] == "message" && at < released+late*3/2 { // before the notification of its own release
				came = append(came, at)
			}
		}
		ok := len(came) == len(test.want)
		for i, at := range came {
			ok = ok && (at-released-test.want[i]).Abs() < late/10
		}
		if !ok {
			t.Errorf("%q: released at %v, messages at %v, want %v later", test.what, released, came, test.want)
		}
	}
}
