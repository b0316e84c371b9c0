// Command sbom says what the modules of this repository are built of, and under which licences.
//
//	go run . DIR...                  prints each module that is built in, its version and its licence
//	go run . -release VERSION DIR    writes that as a bill of materials, in the format of CycloneDX 1.6
//
// DIR is the directory of a module. What only tests need is not in it, nor is the standard library. What is built in on some
// systems alone is in it. Both fail if a licence is unknown, or not allowed.
package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// ours is the path of the library, and what those of the other modules of this repository begin with.
const ours = "github.com/leasehold-go/leasehold"

// allowed lists the licences (https://spdx.org/licenses) that go with Apache-2.0, and ask of users for a notice at the most.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "Unlicense"}

// exceptions lists modules that go with Apache-2.0, too, and ask users for more.
var exceptions = map[string]string{
	// These ask for the source of changes to their own files. Package bridge has them from redsync.
	"github.com/hashicorp/errwrap":       "MPL-2.0",
	"github.com/hashicorp/go-multierror": "MPL-2.0",
}

// module is what go list says of one.
type module struct {
	Path, Version, Dir string
	Sum                string // as in go.sum
	Main               bool
	Replace            *module

	licences map[string]bool
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	release := flag.String("release", "", "write a bill of materials of this `version`")
	flag.Parse()
	var err error
	switch {
	case flag.NArg() == 0 || *release != "" && flag.NArg() > 1:
		err = errors.New("usage: go run . DIR...; go run . -release VERSION DIR")
	case *release != "":
		err = bill(os.Stdout, flag.Arg(0), *release)
	default:
		err = list(os.Stdout, flag.Args())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// list prints what the modules in dirs are built of. Modules of this repository that are built into others are left out.
func list(w io.Writer, dirs []string) error {
	all := map[string]*module{}
	for _, dir := range dirs {
		_, built, err := modules(dir)
		if err != nil {
			return err
		}
		for _, m := range built {
			if m.Replace == nil {
				all[m.Path+" "+m.Version] = m
			}
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m := all[key]
		fmt.Fprintf(t, "%s\t%s\t%s\n", m.Path, m.Version, strings.Join(slices.Sorted(maps.Keys(m.licences)), " AND "))
		problems = append(problems, m.check())
	}
	return errors.Join(append(problems, t.Flush())...)
}

// bill writes what the module in dir is built of.
func bill(w io.Writer, dir, version string) error {
	main, built, err := modules(dir)
	if err != nil {
		return err
	}
	self := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: main, Version: version}
	if strings.Contains(main, "/cmd/") {
		self.Type = cdx.ComponentTypeApplication
	}
	self = component(self, "Apache-2.0")
	components := []cdx.Component{}
	for _, m := range built {
		if m.Replace != nil {
			return fmt.Errorf("%s has a replace line for %s: this is no release", dir, m.Path)
		}
		if err := m.check(); err != nil {
			return err
		}
		// The sum is a SHA-256 over the names and the sums of a module's files, and so it is no sum of one file.
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil || len(sum) == 0 {
			return fmt.Errorf("%s has the sum %q: %v", m.Path, m.Sum, err)
		}
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version}
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		components = append(components, component(c, slices.Sorted(maps.Keys(m.licences))...))
	}
	out := cdx.NewBOM()
	out.Metadata, out.Components = &cdx.Metadata{Component: &self}, &components
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(out, cdx.SpecVersion1_6)
}

// component returns c with its licences and its package URL.
func component(c cdx.Component, licences ...string) cdx.Component {
	c.PackageURL = "pkg:golang/" + c.Name + "@" + c.Version
	c.BOMRef = c.PackageURL
	c.Licenses = &cdx.Licenses{}
	for _, id := range licences {
		*c.Licenses = append(*c.Licenses, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return c
}

// modules returns the path of the module in dir, and the modules of what others can import of it, or run, on any system.
func modules(dir string) (main string, built []*module, err error) {
	out, err := goList(dir, "", "./...")
	if err != nil {
		return "", nil, err
	}
	packages := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool { return strings.Contains(p, "/internal/") })
	all := map[string]*module{}
	for _, system := range []string{"linux", "darwin", "windows"} {
		out, err := goList(dir, system, append([]string{"-deps", "-json=Dir,Module"}, packages...)...)
		if err != nil {
			return "", nil, err
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Dir    string
				Module *module
			}
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return "", nil, err
			}
			switch m := p.Module; {
			case m == nil: // the standard library
			case m.Main:
				main = m.Path
			case m.Replace != nil && !strings.HasPrefix(m.Path+"/", ours+"/"):
				return "", nil, fmt.Errorf("%s replaces %s, which users of it would not", dir, m.Path)
			default:
				if all[m.Path] == nil {
					all[m.Path], m.licences = m, map[string]bool{}
				}
				if err := all[m.Path].scan(p.Dir); err != nil {
					return "", nil, err
				}
			}
		}
	}
	if main == "" {
		return "", nil, fmt.Errorf("%s has no package", dir)
	}
	return main, slices.SortedFunc(maps.Values(all), func(a, b *module) int { return cmp.Compare(a.Path, b.Path) }), nil
}

func goList(dir, system string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if system != "" {
		cmd.Env = append(os.Environ(), "GOOS="+system)
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	return out, nil
}

// licenceFile says what files with a licence are called.
var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([-.].*)?$`)

// scan adds the licences of the package in dir. They are in dir, and in the directories above it in the module.
func (m *module) scan(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			found := licensecheck.Scan(text)
			if found.Percent < 75 { // pkg.go.dev shows no package with less
				m.licences["unknown: "+e.Name()] = true
			}
			for _, match := range found.Match {
				m.licences[match.ID] = true
			}
		}
		if dir == m.Dir {
			return nil
		}
	}
}

// check returns an error if a licence of the module is not allowed.
func (m *module) check() error {
	if len(m.licences) == 0 {
		return fmt.Errorf("%s has no licence", m.Path)
	}
	for id := range m.licences {
		if !slices.Contains(allowed, id) && exceptions[m.Path] != id {
			return fmt.Errorf("%s: the licence %s is not allowed; see allowed in scripts/sbom", m.Path, id)
		}
	}
	return nil
}
