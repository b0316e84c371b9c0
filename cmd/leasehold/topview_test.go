package main

import (
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// The commands of the view run beside it, while it takes the next keys: what a command asks was decided when the view returned it.
func TestTopView_commandsReadNothingThatKeysChange(t *testing.T) {
	a, err := admin.New(redistest.Start(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	v := &topView{ctx: t.Context(), admin: a, every: time.Millisecond, chosen: "orders"}
	looks := v.Init()().(tea.BatchMsg)[0]
	v.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	if v.open != "orders" {
		t.Fatalf("Enter opened %q", v.open)
	}
	first, ok := looks().(looked)
	if !ok || first.err != nil || first.open != "" {
		t.Errorf("the look from before Enter asked for %q, %v", first.open, first.err)
	}
	_, wait := v.Update(first)
	_, look := v.Update(wait())
	second, ok := look().(looked)
	if !ok || second.err != nil || second.open != "orders" || second.text == "" {
		t.Errorf("the look after Enter asked for %q, %v", second.open, second.err)
	}
}
