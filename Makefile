# The modules of this repository: the library, the tests that need more, the
# peers to measure against, and the tool.
MODULES := $(dir $(wildcard go.mod */go.mod */*/go.mod))

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
FUZZTIME    ?= 10s

# What `make versions` runs, and on which servers: all, or SERVERS="redis-6.2 valkey-9.1" PARTS=rules,cluster.
SERVERS ?=
PARTS   ?=

# Which database of vulnerabilities `make vuln` asks. A copy can be a directory: file:///path.
GOVULNDB ?= https://vuln.go.dev

# What make test leaves to make test-all: several processes and long histories, the tool with its browser, and what
# judges the library from outside.
LONG  := integration/ cmd/leasehold/ $(filter proof/%,$(MODULES)) scripts/sbom/
QUICK := $(filter-out $(LONG),$(MODULES))

# What make race runs: the engine, and every kind of lock. The tests of the scripts hardly use goroutines.
RACE := ./internal/... ./watchdog ./reentrant ./fairlock ./rwlock ./multilock ./semaphore ./latch ./leader ./ratelimit ./bloom ./fence/... ./client

# $(call each,command) runs a command in every module, and stops at a failure.
each = @set -e; for m in $(MODULES); do echo "== $$m: $(1)"; (cd $$m; $(1)); done

.DEFAULT_GOAL := help
.PHONY: systems help demo install server redis model test test-all integration programs race interop versions containers fuzz bench fmt tidy lint licences vuln api links ci sim simmutants mutate flaky chaos chaosmutants upgrade picture

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## show what the locks do, in the terminal
	@cd cmd/leasehold && go run . demo

install: ## install the tool, leasehold, where go install puts programs
	cd cmd/leasehold && go install .

server: redis ## install what all tests run, if it is not there: Redis, PostgreSQL, Prometheus, Chromium, ssh-keygen
	@sh scripts/postgres.sh
	@sh scripts/prometheus.sh
	@sh scripts/chromium.sh
	@sh scripts/openssh.sh

redis:
	@sh scripts/redis-server.sh

model: redis ## exhaust the models of the locks, and catch each of their mutants (proof/model/README.md)
	@sh scripts/spin.sh
	@sh proof/model/check.sh $(RUNS)

sim: ## histories from SEEDS=2000 seeds, on virtual time, with faults; what fails replays exactly (proof/sim/README.md)
	@cd proof/sim && go run ./explore $(if $(SEEDS),-seeds $(SEEDS)) $(SIM)

simmutants: ## break the locks in several ways; the simulation must see each of them (proof/sim/README.md)
	@cd proof/sim && go run ./explore -mutants . $(if $(SEEDS),-seeds $(SEEDS)) $(SIM)

mutate: redis ## change the code in one place at a time; a test must notice: SINCE=main for what a change touches, MUTATE='-h' for more (proof/mutants)
	@go run ./proof/mutants $(if $(SINCE),-since $(SINCE)) $(MUTATE)

flaky: server ## what is red on a busy machine, and how often: ROUNDS=10 JOBS=1 LOAD=8 PACKAGES='watchdog internal/session', or all (scripts/flaky.sh)
	@ROUNDS=$(ROUNDS) JOBS=$(JOBS) LOAD=$(LOAD) sh scripts/flaky.sh $(PACKAGES)

# A cached result says nothing about the server of today, hence -count=1.
test race integration programs test-all: export LEASEHOLD_REQUIRE_REDIS = 1
integration programs test-all: export LEASEHOLD_REQUIRE_POSTGRES = 1
programs test-all: export LEASEHOLD_REQUIRE_CHROMIUM = 1
programs test-all: export LEASEHOLD_REQUIRE_PROMETHEUS = 1
test: redis ## what a change can break in minutes; of servers it needs redis-server, and installs it
	@sh scripts/quick.sh $(QUICK)

test-all: server ## all tests: integration, the tool, Redisson, containers, and ten minutes of chaos
	@set -e; for m in $(QUICK); do echo "== $$m: go test"; (cd $$m; go test -count=1 -timeout 25m ./...); done
	@$(MAKE) programs integration interop containers chaos

# The tests of the tool and of the benchmarks wait more than they work, so the others run beside them.
programs: BESIDE := cmd/leasehold/ proof/benchmarks/
programs: server ## the tests of the tool with its browser, of what judges from outside, and of the alert rules
	@below=; for m in $(BESIDE); do (cd $$m && go test -count=1 -timeout 25m ./...) & below="$$below $$!"; done; result=0; \
	for m in $(filter-out integration/ $(BESIDE),$(LONG)) contrib/leaseholdprom/; do \
		echo "== $$m: go test"; (cd $$m && go test -count=1 -timeout 25m ./...) || result=$$?; \
	done; for pid in $$below; do wait $$pid || result=$$?; done; exit $$result

# Its tests wait more than they work, so they run in several processes, and the packages below beside them.
integration: redis ## several processes, clusters, Sentinels, histories
	@sh scripts/postgres.sh
	@(cd integration && go test -count=1 -timeout 25m $$(go list ./... | tail -n +2)) & below=$$!; result=0; \
	sh scripts/parts.sh integration '8:^TestConformance' '^Test[A-G]' || result=$$?; wait $$below || result=$$?; exit $$result

# The tests that are left out only compute, and take minutes under it.
race: redis ## the engine and every kind under the race detector (needs a C compiler)
	go test -race -short -count=1 -timeout 20m -skip '^TestHistories$$' $(RACE)

interop: export LEASEHOLD_REQUIRE_JAVA = 1
interop: redis ## locks shared with Redisson, on a JVM next to the tests
	@sh scripts/java.sh
	cd integration && go test -count=1 -timeout 25m -run '^TestJava' ./...

versions: ## what depends on the server, on others than that of the system; writes docs/evidence/compatibility.md
	@set -e; servers=$$(sh scripts/servers.sh $(SERVERS)); go run ./proof/versions -on "$$servers" -parts '$(PARTS)'

containers: export LEASEHOLD_REQUIRE_CONTAINERS = 1
containers: redis ## the rules of all kinds on a server in a container
	cd integration && sh ../scripts/containers.sh go test -count=1 -timeout 25m -run '^TestContainer' .

chaos: export LEASEHOLD_REQUIRE_REDIS = 1
chaos: export LEASEHOLD_REQUIRE_JAVA = 1
chaos: redis ## faults drawn from a seed, with Redisson, for ten minutes: SEED=42 DURATION=2h ROUND=7 (integration/chaos)
	@sh scripts/java.sh
	@cd integration && SEED=$(SEED) DURATION=$(or $(DURATION),10m) ROUND=$(ROUND) go test -count=1 -timeout 0 -v -run '^TestChaos$$' ./chaos

chaosmutants: export LEASEHOLD_MUTANTS = 1
chaosmutants: redis ## break the locks in several ways; make chaos and make upgrade must see each of them
	cd integration && go test -count=1 -timeout 1h -v -run '^Test(Upgrade)?Mutants$$' ./chaos

upgrade: export LEASEHOLD_REQUIRE_REDIS = 1
upgrade: export LEASEHOLD_UPGRADE = 1
upgrade: redis ## clients of the latest release, or of OLD=v0.1.0 or a commit, on the same keys as clients of this version
	@cd integration && OLD=$(OLD) SEED=$(SEED) go test -count=1 -timeout 25m -v -run '^TestUpgrade$$' ./chaos

fuzz: ## every fuzz test with FUZZTIME=20000x inputs, as many at once as there are processors
	@sh scripts/fuzz.sh $(FUZZTIME)

# With BENCH it prints tables only. Without, it writes them into the pages.
bench: redis ## next to its peers and the floors, 80 minutes for the locks alone, into docs/evidence/performance*.md; BENCH='-h' for less
	@if command -v mvn >/dev/null; then mvn -B -q -f integration/redisson package; peers="-redisson ../../integration/redisson/target/driver.jar"; fi; \
	if module=$$(sh scripts/servers.sh redisbloom); then peers="$$peers -module $$module"; fi; \
	cd proof/benchmarks && $(if $(BENCH),go run . $$peers $(BENCH),go run . $$peers -set locks -doc ../../docs/evidence/performance.md -pictures ../../docs/pictures && go run . $$peers -set kinds -doc ../../docs/evidence/performance-kinds.md)

picture: redis ## play a session of the tool in a terminal, and draw it into docs/pictures/tool.svg
	cd cmd/leasehold && LEASEHOLD_PICTURES='$(CURDIR)/docs/pictures' go test -count=1 -run '^TestPicture$$' .

fmt: ## gofmt everything
	gofmt -w .

tidy: ## go mod tidy, in every module
	$(call each,go mod tidy)

lint: ## gofmt, go.mod, go vet and staticcheck
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "not formatted; run make fmt:"; echo "$$out"; exit 1; }
	$(call each,go mod tidy -diff)
	$(call each,go vet ./...)
	$(call each,go run $(STATICCHECK) ./...)

systems: ## go vet of the library and the tool for macOS and Windows
	@set -e; for os in darwin windows; do echo "== $$os"; \
		GOOS=$$os go vet $$(go list ./... | grep -v '/docs/guides$$\|/proof/'); (cd cmd/leasehold && GOOS=$$os go vet ./...); done

# What is for development alone is in no program of a user.
licences: ## the licence of each module that is built into the library, its modules and the tool
	@cd scripts/sbom && go run . $(addprefix ../../,$(filter-out integration/ proof/% scripts/%,$(MODULES)))

# go run would hide the exit code of govulncheck, which is 3 if it has found something.
vuln: ## known vulnerabilities that code of any module calls; asks vuln.go.dev, or GOVULNDB
	@GOBIN='$(CURDIR)/.tools' go install $(GOVULNCHECK)
	@set -e; for m in $(MODULES); do echo "== $$m: govulncheck"; \
		(cd $$m; '$(CURDIR)/.tools/govulncheck' -db '$(GOVULNDB)' ./...) || { \
			[ $$? -eq 3 ] || echo "make vuln: nothing is known of $$m. Is there a way to $(GOVULNDB)? GOVULNDB names another database." >&2; exit 1; }; done

api: ## what breaks code of users is listed in .ci/api; see scripts/api.sh
	@sh scripts/api.sh

links: ## whether the links of the pages to other servers are alive
	@sh scripts/links.sh

ci: ## what CI runs
	.ci/run
