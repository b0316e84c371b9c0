package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The bill of materials of the library lists what it is built from, on any system, and not what its tests need. Each
// component has a license and a checksum.
func TestBill(t *testing.T) {
	var out bytes.Buffer
	if err := bill(&out, "../..", "v0.1.0"); err != nil {
		t.Fatal(err)
	}
	var b cdx.BOM
	if err := cdx.NewBOMDecoder(&out, cdx.BOMFileFormatJSON).Decode(&b); err != nil {
		t.Fatal(err)
	}
	if c := b.Metadata.Component; b.SpecVersion != cdx.SpecVersion1_6 || c.PackageURL != "pkg:golang/"+ours+"@v0.1.0" || (*c.Licenses)[0].License.ID != "Apache-2.0" {
		t.Errorf("%+v", b)
	}
	components := map[string]cdx.Component{}
	for _, c := range *b.Components {
		components[c.Name] = c
		if len(*c.Licenses) == 0 || len((*c.Hashes)[0].Value) != 64 || c.PackageURL != "pkg:golang/"+c.Name+"@"+c.Version || c.BOMRef != c.PackageURL {
			t.Errorf("%+v", c)
		}
	}
	for name, want := range map[string]bool{"github.com/redis/rueidis": true, "go.uber.org/goleak": false, "golang.org/x/sync": false} {
		if _, has := components[name]; has != want {
			t.Errorf("%s is in it: %t", name, has)
		}
	}
	// A module has parts with other licenses.
	var ids []string
	for _, l := range *components["github.com/alicebob/miniredis/v2"].Licenses {
		ids = append(ids, l.License.ID)
	}
	if !slices.Equal(ids, []string{"BSL-1.0", "MIT", "Unlicense"}) {
		t.Errorf("miniredis has the licences %q", ids)
	}
}

// A module with a replace directive is not a release, and its bill of materials would be wrong.
func TestBill_notReleased(t *testing.T) {
	if err := bill(io.Discard, "../../contrib/cronlock", "v0.1.0"); err == nil || !strings.Contains(err.Error(), "replace") {
		t.Errorf("%v", err)
	}
}

// A license that is not allowed fails the list and the bill of materials.
func TestList(t *testing.T) {
	var out bytes.Buffer
	if err := list(&out, []string{"../.."}); err != nil || !regexp.MustCompile(`(?m)^github.com/redis/rueidis +v\S+ +Apache-2\.0$`).Match(out.Bytes()) {
		t.Errorf("%v\n%s", err, &out)
	}
	defer func(before []string) { allowed = before }(allowed)
	allowed = slices.DeleteFunc(slices.Clone(allowed), func(id string) bool { return id == "BSL-1.0" })
	for _, err := range []error{list(io.Discard, []string{"../.."}), bill(io.Discard, "../..", "v0.1.0")} {
		if err == nil || !strings.Contains(err.Error(), "miniredis/v2: the licence BSL-1.0 is not allowed") {
			t.Errorf("%v", err)
		}
	}
}

// Licenses are found in the directory of a package and above it in its module. A text that is not a license, and a
// missing one, are rejected.
func TestScan(t *testing.T) {
	apache, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"none":    {map[string]string{"README": string(apache)}, "has no licence"},
		"above":   {map[string]string{"LICENSE": string(apache)}, ""},
		"beside":  {map[string]string{"a/b/LICENCE.md": string(apache)}, ""},
		"unknown": {map[string]string{"LICENSE": string(apache), "a/COPYING": "You may look at this code on Sundays."}, "unknown: COPYING is not allowed"},
	} {
		m := module{Path: "example.com/m", Dir: t.TempDir(), licences: map[string]bool{}}
		if err := os.MkdirAll(filepath.Join(m.Dir, "a", "b"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(m.Dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.scan(filepath.Join(m.Dir, "a", "b")); err != nil {
			t.Fatal(err)
		}
		if err := m.check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
