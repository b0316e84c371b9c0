package main

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A release has a tag for each module, whose go.mod requires the release and has no replace directive, a section in the
// changelog, and a bill of materials of each module. Users can verify it. Afterwards the modules are developed together
// again.
func TestRelease(t *testing.T) {
	if os.Getenv("CI") == "" {
		t.Skip("it asks the module proxy for all that any module needs; CI runs it")
	}
	temp := t.TempDir()
	dir := filepath.Join(temp, "clone")
	proxy := filepath.Join(temp, "proxy")
	env := append(os.Environ(), "RELEASE_BUILD=no", "RELEASE_PROXY="+proxy, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com")
	try := func(dir, name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	in := func(dir, name string, args ...string) string {
		t.Helper()
		out, err := try(dir, name, args...)
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return out
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	const version = "v0.0.1-test"
	in(root, "git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", root, dir)

	// A key listed in the repository is required for a release.
	refused := func(why string) {
		t.Helper()
		out, err := try(dir, "sh", "scripts/release.sh", version)
		if tags := in(dir, "git", "tag", "--list", "*"+version); err == nil || !strings.Contains(out, why) || tags != "" {
			t.Fatalf("no refusal with %q: %v, %s\n%s", why, err, tags, out)
		}
	}
	refused("there is no key")
	key := filepath.Join(temp, "key")
	in(temp, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key)
	env = append(env, "RELEASE_KEY="+key)
	refused("does not list")
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(dir, "docs", "release_keys")
	if err := os.WriteFile(keys, append([]byte(`release namespaces="git,leasehold-release" `), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	in(dir, "git", "commit", "--quiet", "--message", "List a key", "docs/release_keys")

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

	var modules, released []string
	for path := range strings.Lines(in(dir, "git", "ls-files", "*/go.mod")) {
		modules = append(modules, filepath.Dir(path))
	}
	tags := strings.Fields(in(dir, "git", "tag", "--list", "*"+version))
	for _, module := range modules {
		if top, _, _ := strings.Cut(module, "/"); top != "cmd" && top != "contrib" {
			if slices.Contains(tags, module+"/"+version) {
				t.Errorf("%s is for development, and has a tag", module)
			}
			continue
		}
		released = append(released, module)
		text := in(dir, "git", "show", module+"/"+version+":"+module+"/go.mod")
		if strings.Contains(text, "=>") || !strings.Contains(text, "github.com/leasehold-go/leasehold "+version) {
			t.Errorf("%s:\n%s", module, text)
		}
		bill, err := os.ReadFile(filepath.Join(dir, "dist", version, strings.ReplaceAll(module, "/", "-")+"-"+version+".cdx.json"))
		for _, part := range []string{"", "/" + module} {
			if part == "" && module == "contrib/goredisopt" {
				continue // only its tests use the library
			}
			if err != nil || !strings.Contains(string(bill), "pkg:golang/github.com/leasehold-go/leasehold"+part+"@"+version) {
				t.Errorf("the bill of %s lacks %s: %v", module, part, err)
			}
		}
	}
	if len(released) < 8 || len(tags) != len(released)+1 || !slices.Contains(tags, version) {
		t.Errorf("%q have the tags %q", released, tags)
	}
	notes, err := os.ReadFile(filepath.Join(dir, "dist", "notes.md"))
	if err != nil || !strings.Contains(string(notes), "### Added") {
		t.Errorf("the notes: %v, %.100q", err, notes)
	}
	archives(t, filepath.Join(dir, "dist", version), version)
	install(t, proxy, version, released)
	verify(t, filepath.Join(temp, "user"), dir, version, env)
	if log := in(dir, "git", "show", version+":CHANGELOG.md"); !strings.Contains(log, "\n## Unreleased\n\n## "+version+" (") {
		t.Error("the changelog has no section for the release")
	}
}

// targets is the number of systems for which the tool is archived.
const targets = 6

// archives unpacks the archive of each system and checks that it contains the tool, its manual and the completions. The
// tool of this system must report the right version.
func archives(t *testing.T, dist, version string) {
	var all []string
	for _, pattern := range []string{"*.tar.gz", "*.zip"} {
		files, err := filepath.Glob(filepath.Join(dist, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	if len(all) != targets {
		t.Errorf("archives: %q", all)
	}
	for _, file := range all {
		in := t.TempDir()
		tool := "leasehold"
		if strings.HasSuffix(file, ".zip") {
			tool += ".exe"
			packed, err := zip.OpenReader(file)
			if err == nil {
				err = errors.Join(os.CopyFS(in, packed), packed.Close())
			}
			if err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
				continue
			}
		} else if out, err := exec.Command("tar", "-xzf", file, "-C", in).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(file), err, out)
			continue
		}
		name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".tar.gz"), ".zip")
		for _, part := range []string{tool, "LICENSE", "man/leasehold.1", "man/leasehold-run.1", "completions/leasehold.bash", "completions/_leasehold", "completions/leasehold.fish", "completions/leasehold.ps1"} {
			if info, err := os.Stat(filepath.Join(in, name, part)); err != nil || info.Size() == 0 {
				t.Errorf("%s has no %s: %v", name, part, err)
			}
		}
		if strings.HasSuffix(name, runtime.GOOS+"-"+runtime.GOARCH) {
			if out, err := exec.Command(filepath.Join(in, name, tool), "version").CombinedOutput(); err != nil || !strings.Contains(string(out), version) {
				t.Errorf("%s says that it is %q, %v", name, out, err)
			}
			if out, err := exec.Command(filepath.Join(in, name, tool), "man").CombinedOutput(); err == nil {
				t.Errorf("%s has the command of the release:\n%s", name, out)
			}
		}
	}
}

// install does what a user does with a release: installs the tool, builds the adapters in new modules, and compiles the
// program of the README. Everything comes from a module proxy that has the release; third-party modules come from the
// usual proxy. No replace directive and no workspace is in effect.
func install(t *testing.T, proxy, version string, released []string) {
	const ours = "github.com/leasehold-go/leasehold"
	var goEnv struct{ GOMODCACHE, GOPROXY string }
	if out, err := exec.Command("go", "env", "-json", "GOMODCACHE", "GOPROXY").Output(); err != nil || json.Unmarshal(out, &goEnv) != nil {
		t.Fatalf("go env: %v, %s", err, out)
	}
	home := t.TempDir()
	env := append(os.Environ(), "GOWORK=off", "GONOSUMDB="+ours, "GOFLAGS=-trimpath -modcacherw", "GOBIN="+filepath.Join(home, "bin"), "GOMODCACHE="+filepath.Join(home, "mod"),
		"GOPROXY=file://"+proxy+",file://"+goEnv.GOMODCACHE+"/cache/download,"+goEnv.GOPROXY)
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("in %s: %s %s: %v\n%s", filepath.Base(dir), name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	project := func() string {
		t.Helper()
		dir := t.TempDir()
		run(dir, "go", "mod", "init", "example.com/stranger")
		return dir
	}

	run(home, "go", "install", ours+"/cmd/leasehold@"+version)
	if out := run(home, filepath.Join(home, "bin", "leasehold"), "version"); !strings.Contains(out, version) {
		t.Errorf("the tool says that it is %q", out)
	}
	for _, module := range released {
		if strings.HasPrefix(module, "contrib/") {
			dir := project()
			run(dir, "go", "get", ours+"/"+module+"@"+version)
			run(dir, "go", "build", ours+"/"+module)
		}
	}

	// The program of the README imports client and lock. The rest of its go.mod is what the library requires of its
	// users.
	dir := project()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?ms)^```go\n(package main.*?)^```$").FindSubmatch(page)
	if program == nil {
		t.Fatal("the README has no program")
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program[1], 0o600); err != nil {
		t.Fatal(err)
	}
	run(dir, "go", "get", ours+"@"+version)
	run(dir, "go", "mod", "tidy")
	run(dir, "go", "build", "-o", filepath.Join(home, "bin", "program"), ".")
	var asked []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v`).FindAllStringSubmatch(run(dir, "go", "mod", "edit", "-print"), -1) {
		asked = append(asked, m[1])
	}
	slices.Sort(asked)
	if want := []string{ours, "github.com/google/uuid", "github.com/minio/highwayhash", "github.com/redis/rueidis", "golang.org/x/sys"}; !slices.Equal(asked, slices.Sorted(slices.Values(want))) {
		t.Errorf("the library asks its users for %q", asked)
	}
}

// verify runs the commands of docs/operate/security.md, in a user's directory, on the release in dir, and on a modified
// copy, which they must reject.
func verify(t *testing.T, user, dir, version string, env []string) {
	page, err := os.ReadFile("../../docs/operate/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## What a release contains\n")
	var blocks []string
	for _, b := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, strings.ReplaceAll(b[1], "v0.1.0", version))
	}
	if len(blocks) != 2 {
		t.Fatalf("the page has the blocks %q", blocks)
	}

	// The user's git finds this clone instead of GitHub, and the user's gh finds the files of the release.
	published := filepath.Join(t.TempDir(), "published")
	if err := os.CopyFS(published, os.DirFS(filepath.Join(dir, "dist", version))); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	gh := "#!/bin/sh\n[ \"$*\" = 'release download " + version + " --repo leasehold-go/leasehold --dir release' ] && cp -r '" + published + "' release\n"
	if err := os.WriteFile(filepath.Join(bin, "gh"), []byte(gh), 0o700); err != nil {
		t.Fatal(err)
	}
	env = append(env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+dir+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/leasehold-go/leasehold")
	run := func(block string) (string, error) {
		cmd := exec.Command("sh", "-ec", block)
		cmd.Dir, cmd.Env = user, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	download := func() (string, error) {
		if err := errors.Join(os.RemoveAll(user), os.Mkdir(user, 0o700)); err != nil {
			t.Fatal(err)
		}
		return run(blocks[0])
	}
	files, err := filepath.Glob(filepath.Join(published, "*.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := download()
	if err != nil || !strings.Contains(out, `Good "git" signature`) || !strings.Contains(out, `Good "leasehold-release" signature`) || strings.Count(out, ": OK\n") != len(files)+1+targets {
		t.Errorf("%v\n%s", err, out)
	}

	// Go itself wrote the go.sum of a module that needs others.
	change := func(path, old, new string) (undo func()) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), old) {
			t.Fatalf("%s has no %q: %v", path, old, err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), old, new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, err := run("git -C leasehold show cmd/leasehold/" + version + ":cmd/leasehold/go.sum >go.sum; grep -c 'leasehold " + version + "' go.sum"); err != nil || out != "2\n" {
		t.Errorf("the module's go.sum: %v, %s", err, out)
	}
	if out, _ := run(blocks[1]); out != "" {
		t.Errorf("the module's go.sum has what the release has not:\n%s", out)
	}
	change(filepath.Join(user, "go.sum"), "leasehold "+version+" h1:", "leasehold "+version+" h1:x")
	if out, _ := run(blocks[1]); !strings.Contains(out, "h1:x") {
		t.Errorf("a go.sum with a change passes: %q", out)
	}

	for _, c := range []struct{ file, old, new, want string }{
		{filepath.Base(files[0]), "Apache-2.0", "MIT", filepath.Base(files[0]) + ": FAILED"},
		{"leasehold-" + version + ".go.sum", "h1:", "h1:x", ".go.sum: FAILED"},
		{"SHA256SUMS", "  ", " *", "Could not verify signature"},
	} {
		undo := change(filepath.Join(published, c.file), c.old, c.new)
		if out, err := download(); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s, changed, passes: %v\n%s", c.file, err, out)
		}
		undo()
	}
	for _, block := range []string{
		"git -C '" + dir + "' tag -f -a " + version + " -m unsigned",
		"rm -f other other.pub; ssh-keygen -q -t ed25519 -N '' -f other; git -C '" + dir + "' -c gpg.format=ssh -c user.signingkey=$PWD/other tag -f -s " + version + " -m other",
	} {
		if out, err := run(block); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := download(); err == nil || strings.Contains(out, "leasehold-release") {
			t.Errorf("a tag of somebody else passes: %v\n%s", err, out)
		}
	}
}
