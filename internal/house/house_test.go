// Package house tests the architecture: which package may import which.
//
// By folder, where "the product" is every package at the top of the repository except those named here:
//
//	the product  imports the product and internal
//	admin        imports the product and internal; its dashboard imports admin
//	contrib      imports the product, never admin; an adapter may build on another one
//	cmd          imports the product, admin and internal
//	docs         imports the product, admin and contrib, as an application does
//	proof        imports anything
//	integration  imports anything except proof
//	internal     imports the product and internal
//
// Nothing imports cmd, docs, integration or proof. TestFolders checks this in every module of the repository.
// TestFloors checks the library and the tool package by package; docs/internals/architecture.md draws that order.
package house

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/leasehold-go/leasehold/"

// floors lists, for each package, the packages of this module and of other modules that it may
// import. A package that is not listed must not exist, so adding a package requires a decision
// about its imports.
var floors = map[string]struct {
	ours   []string
	others []string
	why    string
}{

	"github.com/leasehold-go/leasehold": {ours: []string{"lock"}, why: "the first page: documentation, and no code"},
	"docs":                              {ours: nil, why: "pages, and the tests that read them"},
	"docs/guides":                       {ours: nil, why: "the code of the pages; only its tests import anything"},
	"docs/programs/http":                {ours: []string{"client", "contrib/httplock", "lock"}, why: "the program of a guide"},
	"docs/programs/leader":              {ours: []string{"client", "leader", "lock"}, why: "the program of a guide"},
	"docs/programs/limits":              {ours: []string{"client", "lock", "ratelimit"}, why: "the program of a guide"},
	"docs/programs/nightly":             {ours: []string{"client", "fence", "lock"}, others: []string{"github.com/redis/rueidis"}, why: "the program of a guide"},
	"docs/programs/programtest":         {why: "runs the program of a guide as a process; only tests import it"},
	"docs/programs/queue":               {ours: []string{"client", "lock"}, others: []string{"github.com/redis/rueidis"}, why: "the program of a guide"},
	"docs/programs/readme":              {ours: []string{"client", "lock"}, why: "the program of the README"},
	"docs/programs/serverless":          {ours: []string{"client", "lock"}, why: "the program of a guide"},
	"internal/owner":                    {others: []string{"github.com/google/uuid"}, why: "what a context carries; the words and the session agree on it"},
	"internal/mask":                     {why: "an error that does not match everything its cause does"},
	"lock":                              {ours: []string{"internal/mask", "internal/option", "internal/owner"}, why: "the words; code that takes a lock as a parameter depends on this and on nothing else"},
	"watchdog":                          {ours: []string{"lock"}, why: "knows leases, time and the causes of a loss, no Redis, so that it can be tested on virtual time alone"},
	"luascripts":                        {others: []string{"github.com/redis/rueidis"}, why: "all that changes a lock, and nothing that decides when"},
	"internal/keys":                     {ours: []string{"lock", "luascripts"}, why: "every key and channel, from a name: it knows what a bad name is and what scripts need, and sends nothing"},
	"internal/retry":                    {ours: []string{"lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "what an error means, and after which pause to try again: all that sends commands goes by it"},
	"internal/pubsub":                   {ours: []string{"internal/retry"}, others: []string{"github.com/redis/rueidis"}, why: "hears channels: it knows connections, and no locks"},
	"internal/slots":                    {others: []string{"github.com/redis/rueidis"}, why: "which node of a cluster has which slot: it knows the cluster, and no locks"},
	"internal/registry":                 {ours: []string{"internal/keys", "internal/mask", "internal/retry", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "which clients there are: it knows owners, and no locks"},
	"internal/command":                  {ours: []string{"internal/mask", "internal/retry", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "sends commands, says what became of them and what an error means: it knows no locks"},
	"internal/lockstate":                {why: "one lock in one process, as a state machine: it knows no Redis, no context and no clock"},
	"internal/session":                  {ours: []string{"internal/command", "internal/pubsub", "internal/keys", "internal/owner", "internal/lockstate", "internal/mask", "internal/registry", "internal/retry", "internal/slots", "lock", "lock/lockimpl", "luascripts", "watchdog"}, others: []string{"github.com/redis/rueidis"}, why: "what the kinds share"},
	"reentrant":                         {ours: []string{"internal/keys", "internal/lockstate", "internal/session", "lock", "lock/lockimpl", "luascripts"}, why: "a kind knows its scripts, how its waiters wait, and the session, and no other kind"},
	"fairlock":                          {ours: []string{"internal/keys", "internal/lockstate", "internal/session", "lock", "lock/lockimpl", "luascripts"}, why: "a kind knows its scripts, how its waiters wait, and the session, and no other kind"},
	"rwlock":                            {ours: []string{"internal/keys", "internal/lockstate", "internal/session", "lock", "lock/lockimpl", "luascripts"}, why: "a kind knows its scripts, how its waiters wait, and the session, and no other kind"},
	"semaphore":                         {ours: []string{"internal/command", "internal/keys", "internal/lockstate", "internal/session", "lock", "lock/lockimpl", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "a kind knows its scripts, how its waiters wait, and the session, and no other kind"},
	"leader":                            {ours: []string{"internal/mask", "lock"}, why: "one that leads, by any lock, also by other people's: it knows what a lock is, and no Redis"},
	"internal/board":                    {ours: []string{"internal/command", "internal/keys", "internal/session", "leader", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "where a leader says what it says; it takes no locks"},
	"latch":                             {ours: []string{"internal/command", "internal/pubsub", "internal/keys", "internal/lockstate", "internal/session", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "a kind knows its scripts, how its waiters wait, and the session, and no other kind"},
	"multilock":                         {ours: []string{"internal/mask", "lock", "lock/lockimpl", "watchdog"}, why: "locks made of any locks, also of other people's: it knows what a lock is, and no Redis"},
	"fence":                             {ours: []string{"internal/command", "internal/keys", "internal/slots", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "guards what is locked, and takes no locks: it needs their words, its scripts and what an error means"},
	"ratelimit":                         {ours: []string{"internal/command", "internal/keys", "internal/retry", "internal/slots", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "counts what is done, and takes no locks: it needs their words, its scripts and a way to Redis"},
	"bloom":                             {ours: []string{"internal/command", "internal/keys", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis", "github.com/minio/highwayhash"}, why: "bits of elements, in Redisson's layout; it takes no locks"},
	"internal/dial":                     {ours: []string{"internal/command", "internal/retry", "lock"}, others: []string{"github.com/redis/rueidis"}, why: "connects, and says why that failed: it knows no locks"},
	"client":                            {ours: []string{"bloom", "internal/command", "internal/dial", "internal/pubsub", "internal/keys", "internal/registry", "internal/retry", "internal/session", "lock", "reentrant", "fairlock", "rwlock", "semaphore", "ratelimit", "latch", "leader", "internal/board"}, others: []string{"github.com/redis/rueidis"}, why: "the only place where all kinds meet"},
	"admin":                             {ours: []string{"internal/command", "internal/pubsub", "internal/keys", "internal/registry", "internal/retry", "internal/session", "internal/slots", "leader", "lock", "luascripts"}, others: []string{"github.com/redis/rueidis"}, why: "looks at all locks from outside: it knows their shapes and their words, and takes none"},
	"internal/memredis":                 {others: []string{"github.com/alicebob/miniredis/v2"}, why: "a server in memory, for locktest and the demo"},
	"locktest":                          {ours: []string{"lock", "lock/lockimpl", "latch", "leader", "ratelimit", "bloom", "client", "internal/keys", "internal/memredis"}, others: []string{"github.com/alicebob/miniredis/v2", "github.com/redis/rueidis"}, why: "for tests; only tests import it"},
	"internal/redistest":                {ours: []string{"internal/memredis"}, others: []string{"github.com/alicebob/miniredis/v2", "github.com/redis/rueidis", "go.uber.org/goleak"}, why: "servers and wires for tests; only tests import it"},
	"internal/kindtest":                 {ours: []string{"client", "lock", "lock/lockimpl", "internal/redistest", "internal/retry"}, others: []string{"github.com/redis/rueidis", "pgregory.net/rapid"}, why: "what the tests of all kinds share; only tests import it"},
	"internal/fencetest":                {ours: []string{"fence", "lock"}, why: "what the tests of guards share; only tests import it"},
	"internal/observetest":              {ours: []string{"client", "lock", "internal/redistest"}, why: "what the tests of observers share; only tests import it"},
	"internal/adaptertest":              {ours: []string{"client", "lock", "internal/redistest"}, others: []string{"github.com/redis/rueidis"}, why: "what the tests of adapters share; only tests import it"},
	"cmd/leasehold":                     {ours: []string{"admin", "admin/dashboard", "client", "lock", "reentrant", "semaphore", "multilock", "ratelimit", "internal/dial", "cmd/leasehold/internal/child", "cmd/leasehold/internal/demo", "cmd/leasehold/internal/doctor", "cmd/leasehold/internal/terminal", "lock/lockimpl"}, others: []string{"github.com/redis/rueidis", "github.com/spf13/cobra", "golang.org/x/term", "charm.land/bubbletea/v2", "github.com/charmbracelet/x/ansi", "github.com/spf13/pflag", "golang.org/x/crypto/bcrypt"}, why: "uses the library as any application does"},
	"cmd/leasehold/internal/child":      {others: []string{"golang.org/x/sys", "golang.org/x/term"}, why: "a command and its terminal; it knows no locks"},
	"cmd/leasehold/internal/demo":       {ours: []string{"bloom", "client", "cmd/leasehold/internal/terminal", "fairlock", "fence", "internal/memredis", "latch", "lock", "multilock", "ratelimit", "reentrant", "rwlock", "semaphore"}, others: []string{"github.com/redis/rueidis"}, why: "the scenes of leasehold demo use each type of lock"},
	"cmd/leasehold/internal/doctor":     {ours: []string{"client", "internal/slots", "lock"}, others: []string{"github.com/redis/rueidis"}, why: "asks a server what it would answer a client"},
	"cmd/leasehold/internal/terminal":   {others: []string{"golang.org/x/term"}, why: "colors and progress, for the tool and its demo"},
	"internal/house":                    {why: "this test"},
	"proof/mutants":                     {why: "changes code, and runs tests; it reads sources, and imports none"},
	"proof/versions":                    {why: "runs the tests on several servers, and writes a page"},
	"proof/reliability":                 {why: "runs the tests again and again, and writes a page"},
	"internal/option":                   {why: "what options say; package lock makes them, and lockimpl reads them"},
	"lock/lockimpl":                     {ours: []string{"internal/option", "internal/owner", "lock"}, why: "what only authors of locks need"},
	"fence/fencesql":                    {ours: []string{"fence", "lock"}, why: "a guard for databases; it knows no Redis"},
	"contrib/httplock":                  {ours: []string{"lock"}, why: "locks for HTTP requests; it knows no Redis"},
	"contrib/synclock":                  {ours: []string{"lock"}, why: "a lock as a sync.Locker; it knows no Redis"},
	"fence/fencehttp":                   {ours: []string{"fence", "lock"}, why: "a guard for HTTP; it knows no Redis"},
	"admin/dashboard":                   {ours: []string{"admin", "lock"}, others: []string{"github.com/redis/rueidis"}, why: "shows what admin sees"},
}

// folders lists the folders whose packages the packages of a folder may import. Everything at the top that is
// not listed is the product.
var folders = map[string][]string{
	"product":     {"product", "internal"},
	"internal":    {"product", "internal"},
	"admin":       {"product", "internal", "admin"},
	"contrib":     {"product", "contrib"},
	"cmd":         {"product", "internal", "admin", "cmd"},
	"docs":        {"product", "admin", "contrib"},
	"integration": {"product", "internal", "admin", "contrib", "integration"},
	"proof":       {"product", "internal", "admin", "contrib", "proof"},
}

// folder returns the folder of folders that a package of this repository is in.
func folder(importPath string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(importPath, module), "/")
	if _, ok := folders[first]; ok && first != "product" {
		return first
	}
	return "product"
}

// stray returns the imports of p that are not allowed for its folder.
func stray(p pkg) (problems []string) {
	for _, i := range p.Imports {
		if strings.HasPrefix(i, module) && !slices.Contains(folders[folder(p.ImportPath)], folder(i)) {
			problems = append(problems, strings.TrimPrefix(p.ImportPath, module)+" imports "+strings.TrimPrefix(i, module))
		}
	}
	return problems
}

func TestFolders(t *testing.T) {
	var mods []string
	for _, pattern := range []string{"../../go.mod", "../../*/go.mod", "../../*/*/go.mod"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		mods = append(mods, found...)
	}
	seen := map[string]bool{}
	for _, mod := range mods {
		for _, p := range list(t, filepath.Dir(mod)) {
			seen[folder(p.ImportPath)] = true
			for _, problem := range stray(p) {
				t.Error(problem)
			}
		}
	}
	for name := range folders {
		if !seen[name] {
			t.Errorf("no package is in %s", name)
		}
	}
	for from, to := range map[string]string{"lock": "contrib/httplock", "internal/session": "admin", "contrib/bridge": "admin", "cmd/leasehold": "proof/sim", "integration": "proof/sim", "admin": "docs/guides"} {
		if stray(pkg{ImportPath: module + from, Imports: []string{module + to}}) == nil {
			t.Errorf("%s may import %s", from, to)
		}
	}
}

type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	GoFiles    []string
}

// list returns the packages of the modules in these directories.
func list(t *testing.T, dirs ...string) (all []pkg) {
	t.Helper()
	for _, dir := range dirs {
		cmd := exec.Command("go", "list", "-json=ImportPath,Standard,Imports,GoFiles", "./...")
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list in %s: %v", dir, err)
		}
		for d := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p pkg
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
	}
	return all
}

func TestFloors(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "../..", "../../cmd/leasehold") {
		name := strings.TrimPrefix(p.ImportPath, module)
		seen[name] = true
		for _, problem := range check(p) {
			t.Error(problem)
		}
	}
	for name := range floors {
		if !seen[name] {
			t.Errorf("%s has a floor, but does not exist", name)
		}
	}
}

// check returns the problems in the imports of p.
func check(p pkg) (problems []string) {
	name := strings.TrimPrefix(p.ImportPath, module)
	floor, ok := floors[name]
	if !ok {
		return []string{name + " has no floor: say in floors where it stands, and why"}
	}
	for _, i := range p.Imports {
		first, _, _ := strings.Cut(i, "/")
		switch {
		case strings.HasPrefix(i, module):
			if !slices.Contains(floor.ours, strings.TrimPrefix(i, module)) {
				problems = append(problems, name+" imports "+strings.TrimPrefix(i, module)+", but "+floor.why)
			}
		case strings.Contains(first, "."): // not the standard library
			if !slices.ContainsFunc(floor.others, func(o string) bool { return i == o || strings.HasPrefix(i, o+"/") }) {
				problems = append(problems, name+" imports "+i+", but "+floor.why)
			}
		}
	}
	return problems
}

// The check itself must be able to fail.
func TestFloors_areReallyChecked(t *testing.T) {
	for _, p := range []pkg{
		{ImportPath: module + "lock", Imports: []string{"github.com/redis/rueidis"}},
		{ImportPath: module + "watchdog", Imports: []string{module + "luascripts"}},
		{ImportPath: module + "luascripts", Imports: []string{module + "lock"}},
		{ImportPath: module + "internal/session", Imports: []string{module + "reentrant"}},
		{ImportPath: module + "reentrant", Imports: []string{module + "locktest"}},
		{ImportPath: module + "newcomer"},
	} {
		if check(p) == nil {
			t.Errorf("%s may import %v", p.ImportPath, p.Imports)
		}
	}
	if p := check(pkg{ImportPath: module + "reentrant", Imports: []string{"context", module + "lock"}}); p != nil {
		t.Error(p)
	}
}
