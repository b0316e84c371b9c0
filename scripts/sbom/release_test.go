package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A release has a tag for each module, whose go.mod needs the release and no replace line; a section in the changelog; and
// a bill of each module. Afterwards the modules are developed together again.
func TestRelease(t *testing.T) {
	if os.Getenv("CI") == "" {
		t.Skip("it asks the module proxy for all that any module needs; CI runs it")
	}
	dir := filepath.Join(t.TempDir(), "clone")
	in := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "RELEASE_BUILD=no", "GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
			"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	const version = "v0.0.1-test"
	in(root, "git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", root, dir)
	before := in(dir, "git", "rev-parse", "HEAD^{tree}")
	if !strings.Contains(in(dir, "sh", "scripts/release.sh", version), "git push origin") {
		t.Error("it does not say how to publish the release")
	}
	if status := in(dir, "git", "status", "--porcelain"); status != "" {
		t.Errorf("it leaves changes:\n%s", status)
	}
	if changed := in(dir, "git", "diff", "--name-only", strings.TrimSpace(before), "HEAD^{tree}"); changed != "CHANGELOG.md\n" {
		t.Errorf("after the release these differ:\n%s", changed)
	}

	modules, err := filepath.Glob(filepath.Join(dir, "*", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	modules = append(modules, filepath.Join(dir, "cmd", "leasehold", "go.mod"))
	tags := strings.Fields(in(dir, "git", "tag"))
	released := 0
	for _, path := range modules {
		module, err := filepath.Rel(dir, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]string{"integration", "benchmarks", "sim"}, module) {
			if slices.Contains(tags, module+"/"+version) {
				t.Errorf("%s is for development, and has a tag", module)
			}
			continue
		}
		released++
		text := in(dir, "git", "show", module+"/"+version+":"+module+"/go.mod")
		if strings.Contains(text, "=>") || !strings.Contains(text, "github.com/leasehold-go/leasehold "+version) {
			t.Errorf("%s:\n%s", module, text)
		}
		bill, err := os.ReadFile(filepath.Join(dir, "dist", strings.ReplaceAll(module, "/", "-")+"-"+version+".cdx.json"))
		if err != nil || !strings.Contains(string(bill), "pkg:golang/github.com/leasehold-go/leasehold@"+version) {
			t.Errorf("the bill of %s: %v", module, err)
		}
	}
	if len(tags) != released+1 || !slices.Contains(tags, version) {
		t.Errorf("%d modules have the tags %q", released, tags)
	}
	notes, err := os.ReadFile(filepath.Join(dir, "dist", "notes.md"))
	if err != nil || !strings.Contains(string(notes), "### Added") {
		t.Errorf("the notes: %v, %.100q", err, notes)
	}
	if log := in(dir, "git", "show", version+":CHANGELOG.md"); !strings.Contains(log, "\n## Unreleased\n\n## "+version+" (") {
		t.Error("the changelog has no section for the release")
	}
}
