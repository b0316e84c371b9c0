// Command sbom writes what is built into a module of this repository, as a bill of materials in the format of
// CycloneDX 1.6 (https://cyclonedx.org).
//
//	go run ./scripts/sbom DIR VERSION >leasehold-v0.1.0.cdx.json
//
// DIR is the directory of the module, and VERSION its version. What only tests need is not in it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// component is a module in the list.
type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

func newComponent(kind, name, version string) component {
	purl := "pkg:golang/" + name + "@" + version
	return component{Type: kind, Ref: purl, Name: name, Version: version, PURL: purl}
}

// module is what go list says of one.
type module struct {
	Path, Version string
	Main          bool
	Replace       *module
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: go run ./scripts/sbom DIR VERSION")
	}
	out, err := sbom(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(out); err != nil {
		log.Fatal(err)
	}
}

// sbom returns the list of the module in dir.
func sbom(dir, version string) ([]byte, error) {
	list := exec.Command("go", "list", "-deps", "-json=Module", "./...")
	list.Dir = dir
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	main, built := "", map[string]component{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		switch m := p.Module; {
		case m == nil: // the standard library
		case m.Main:
			main = m.Path
		case m.Replace != nil:
			return nil, fmt.Errorf("%s has a replace line for %s: this is no release", dir, m.Path)
		default:
			built[m.Path] = newComponent("library", m.Path, m.Version)
		}
	}
	if main == "" {
		return nil, fmt.Errorf("%s has no package", dir)
	}
	kind := "library"
	if strings.Contains(main, "/cmd/") {
		kind = "application"
	}
	bill := struct {
		Format     string         `json:"bomFormat"`
		Spec       string         `json:"specVersion"`
		Version    int            `json:"version"`
		Metadata   map[string]any `json:"metadata"`
		Components []component    `json:"components"`
	}{"CycloneDX", "1.6", 1, map[string]any{"component": newComponent(kind, main, version)}, []component{}}
	for _, path := range slices.Sorted(maps.Keys(built)) {
		bill.Components = append(bill.Components, built[path])
	}
	out, err = json.MarshalIndent(bill, "", "  ")
	return append(out, '\n'), err
}
