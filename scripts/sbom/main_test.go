package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The bill of the library has what it is built of, and not what its tests need.
func TestSBOM(t *testing.T) {
	out, err := sbom("../..", "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BOMFormat, SpecVersion string
		Metadata               struct{ Component component }
		Components             []component
	}
	if err := json.Unmarshal(out, &bill); err != nil {
		t.Fatal(err)
	}
	if c := bill.Metadata.Component; bill.BOMFormat != "CycloneDX" || bill.SpecVersion != "1.6" || c.PURL != "pkg:golang/github.com/leasehold-go/leasehold@v0.1.0" {
		t.Errorf("%+v", bill)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(bill.Components, func(c component) bool {
			return c.Name == name && strings.HasPrefix(c.Version, "v") && c.PURL == "pkg:golang/"+name+"@"+c.Version && c.Ref == c.PURL
		})
	}
	for name, want := range map[string]bool{"github.com/redis/rueidis": true, "golang.org/x/sync": false} {
		if has(name) != want {
			t.Errorf("%s is in it: %t", name, !want)
		}
	}
}

// A module with a replace line is no release, and its bill would be a lie.
func TestSBOM_notReleased(t *testing.T) {
	if _, err := sbom("../../cronlock", "v0.1.0"); err == nil || !strings.Contains(err.Error(), "replace") {
		t.Errorf("%v", err)
	}
}
