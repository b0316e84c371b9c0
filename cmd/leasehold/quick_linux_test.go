package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// On a terminal, make test shows how many packages are done. It fails if a test of the first module or of another module fails.
func TestQuick(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	script, err := filepath.Abs("../../scripts/quick.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		first, second string // what their tests do
		code          string
	}{
		"passed":       {"", "", "code 0"},
		"first fails":  {"t.Fail()", "", "code 1"},
		"second fails": {"", "t.Fail()", "code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for module, does := range map[string]string{"first": test.first, "second": test.second} {
				waits := "for { if _, err := os.Stat(\"" + dir + "/go\"); err == nil { break }; time.Sleep(10 * time.Millisecond) }\n"
				for path, text := range map[string]string{
					module + "/go.mod":            "module " + module + "\n\ngo 1.25.0\n",
					"first/quick/quick_test.go":   "package quick\n\nimport \"testing\"\n\nfunc TestQuick(t *testing.T) {}\n",
					module + "/slow/slow_test.go": "package slow\n\nimport (\n\"os\"\n\"testing\"\n\"time\"\n)\n\nfunc TestSlow(t *testing.T) {\n" + waits + does + "\n}\n",
				} {
					path = filepath.Join(dir, path)
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			p := inTerminal(t, s).begin()
			p.types("cd " + dir + "; sh " + script + " first second; echo \"code $?\"; exit 0\n")
			const compiling = 3 * time.Minute // on a busy machine
			if !p.stdout.within(compiling, "s, 1 packages are done") {
				t.Error("it does not show how far it is")
			}
			if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if !p.stdout.within(compiling, "code ") || !p.stdout.within(promptly, test.code) {
				t.Errorf("want %s", test.code)
			}
			p.ends(0)
		})
	}
}
