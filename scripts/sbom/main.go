// Command sbom reports which modules the modules of this repository are built from, and under which licenses.
//
//	go run . DIR...                  prints each module that is built in, its version and its license
//	go run . -release VERSION DIR    writes the same as a bill of materials, in the CycloneDX 1.6 format
//
// DIR is the directory of a module. Modules needed only by tests are left out, and so is the standard library. Modules
// built in on only some systems are included. Both forms fail if a license is unknown or not allowed.
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

// ours is the path of the library, and the prefix of the other modules of this repository.
const ours = "github.com/leasehold-go/leasehold"

// allowed lists the licenses (https://spdx.org/licenses) that are compatible with Apache-2.0 and require users to
// include a notice at most.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "Unlicense"}

// exceptions lists modules whose licenses are compatible with Apache-2.0, but require more of users.
var exceptions = map[string]string{
	// These require the source of changes to their own files. Package bridge gets them through redsync.
	"github.com/hashicorp/errwrap":       "MPL-2.0",
	"github.com/hashicorp/go-multierror": "MPL-2.0",
}

// module is a module in the output of go list.
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

// list prints the modules that the modules in dirs are built from, without those of this repository.
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

// bill writes the bill of materials of the module in dir.
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
		// The sum is a SHA-256 over the names and hashes of the module's files, not the hash of a single file.
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

// component returns c with its licenses and its package URL.
func component(c cdx.Component, licences ...string) cdx.Component {
	c.PackageURL = "pkg:golang/" + c.Name + "@" + c.Version
	c.BOMRef = c.PackageURL
	c.Licenses = &cdx.Licenses{}
	for _, id := range licences {
		*c.Licenses = append(*c.Licenses, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return c
}

// modules returns the path of the module in dir, and the modules that its public packages and commands are built from,
// on any system.
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

// licenceFile matches the names of license files.
var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([-.].*)?$`)

// scan adds the licenses of the package in dir. They are in dir, and in the directories above it in the module.
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
			if found.Percent < 75 { // pkg.go.dev hides packages whose license matches less
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

// check returns an error if a license of the module is not allowed.
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
