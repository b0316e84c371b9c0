# All Go modules of this repository.
MODULES := $(dir $(wildcard go.mod */go.mod */*/go.mod))

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
FUZZTIME    ?= 10s

# Arguments of `make versions`. The default is all servers and parts; for example SERVERS="redis-6.2 valkey-9.1"
# PARTS=rules,cluster.
SERVERS ?=
PARTS   ?=

# The vulnerability database for `make vuln`. It can be a local copy: file:///path.
GOVULNDB ?= https://vuln.go.dev

# Modules that `make test` leaves to `make test-all`: multi-process and long-history tests, the tool with its
# browser, and the modules in proof/ and scripts/.
LONG  := integration/ cmd/leasehold/ $(filter proof/%,$(MODULES)) scripts/sbom/
QUICK := $(filter-out $(LONG),$(MODULES))

# Packages for `make race`: the engine and every type of lock. The tests of the Lua scripts hardly use goroutines.
RACE := ./internal/... ./watchdog ./reentrant ./fairlock ./rwlock ./multilock ./semaphore ./latch ./leader ./ratelimit ./bloom ./fence/... ./client

# $(call each,command) runs a command in every module and stops at the first failure.
each = @set -e; for m in $(MODULES); do echo "== $$m: $(1)"; (cd $$m; $(1)); done

.DEFAULT_GOAL := help
.PHONY: systems help demo install server redis model test test-all integration programs race interop versions containers fuzz bench fmt tidy lint licences vuln api links ci sim simmutants mutate flaky chaos chaosmutants upgrade picture

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## show what the locks do, in the terminal
	@cd cmd/leasehold && go run . demo

install: ## install the leasehold command with go install
	cd cmd/leasehold && go install .

server: redis ## install what the tests need: Redis, PostgreSQL, Prometheus, Chromium, ssh-keygen
	@sh scripts/postgres.sh
	@sh scripts/prometheus.sh
	@sh scripts/chromium.sh
	@sh scripts/openssh.sh

redis:
	@sh scripts/redis-server.sh

model: redis ## check the models of the locks exhaustively, and catch each of their mutants (proof/model/README.md)
	@sh scripts/spin.sh
	@sh proof/model/check.sh $(RUNS)

sim: ## simulate histories from SEEDS=2000 seeds, in virtual time, with faults; failures replay exactly (proof/sim/README.md)
	@cd proof/sim && go run ./explore $(if $(SEEDS),-seeds $(SEEDS)) $(SIM)

simmutants: ## break the locks in several ways; the simulation must detect each of them (proof/sim/README.md)
	@cd proof/sim && go run ./explore -mutants . $(if $(SEEDS),-seeds $(SEEDS)) $(SIM)

mutate: redis ## mutation testing: SINCE=main for the changed lines only, MUTATE='-h' for more options (proof/mutants)
	@go run ./proof/mutants $(if $(SINCE),-since $(SINCE)) $(MUTATE)

flaky: server ## find flaky tests on a busy machine: ROUNDS=10 JOBS=1 LOAD=8 PACKAGES='watchdog internal/session', or all (scripts/flaky.sh)
	@ROUNDS=$(ROUNDS) JOBS=$(JOBS) LOAD=$(LOAD) sh scripts/flaky.sh $(PACKAGES)

# Cached results say nothing about the installed server, so these run with -count=1.
test race integration programs test-all: export LEASEHOLD_REQUIRE_REDIS = 1
integration programs test-all: export LEASEHOLD_REQUIRE_POSTGRES = 1
programs test-all: export LEASEHOLD_REQUIRE_CHROMIUM = 1
programs test-all: export LEASEHOLD_REQUIRE_PROMETHEUS = 1
test: redis ## run the short tests, in minutes; installs redis-server if it is missing
	@sh scripts/quick.sh $(QUICK)

test-all: server ## run all tests: integration, the tool, Redisson, containers, and ten minutes of chaos
	@set -e; for m in $(QUICK); do echo "== $$m: go test"; (cd $$m; go test -count=1 -timeout 25m ./...); done
	@$(MAKE) programs integration interop containers chaos

# The tests of the tool and of the benchmarks mostly wait, so the others run in parallel with them.
programs: BESIDE := cmd/leasehold/ proof/benchmarks/
programs: server ## test the tool with its browser, the modules in proof/ and scripts/, and the alert rules
	@below=; for m in $(BESIDE); do (cd $$m && go test -count=1 -timeout 25m ./...) & below="$$below $$!"; done; result=0; \
	for m in $(filter-out integration/ $(BESIDE),$(LONG)) contrib/leaseholdprom/; do \
		echo "== $$m: go test"; (cd $$m && go test -count=1 -timeout 25m ./...) || result=$$?; \
	done; for pid in $$below; do wait $$pid || result=$$?; done; exit $$result

# These tests mostly wait, so they run in several processes, in parallel with the packages below integration/.
integration: redis ## test with several processes, clusters, Sentinels and long histories
	@sh scripts/postgres.sh
	@(cd integration && go test -count=1 -timeout 25m $$(go list ./... | tail -n +2)) & below=$$!; result=0; \
	sh scripts/parts.sh integration '8:^TestConformance' '^Test[A-G]' || result=$$?; wait $$below || result=$$?; exit $$result

# TestHistories is skipped: it is CPU-bound, and takes minutes under the race detector.
race: redis ## run the engine and every type of lock under the race detector (needs a C compiler)
	go test -race -short -count=1 -timeout 20m -skip '^TestHistories$$' $(RACE)

interop: export LEASEHOLD_REQUIRE_JAVA = 1
interop: redis ## test locks shared with Redisson, on a JVM next to the tests
	@sh scripts/java.sh
	cd integration && go test -count=1 -timeout 25m -run '^TestJava' ./...

versions: ## run the server-dependent tests on other Redis and Valkey versions; writes docs/evidence/compatibility.md
	@set -e; servers=$$(sh scripts/servers.sh $(SERVERS)); go run ./proof/versions -on "$$servers" -parts '$(PARTS)'

containers: export LEASEHOLD_REQUIRE_CONTAINERS = 1
containers: redis ## test the rules of every type of lock on a server in a container
	cd integration && sh ../scripts/containers.sh go test -count=1 -timeout 25m -run '^TestContainer' .

chaos: export LEASEHOLD_REQUIRE_REDIS = 1
chaos: export LEASEHOLD_REQUIRE_JAVA = 1
chaos: redis ## inject random faults for ten minutes, with Redisson clients: SEED=42 DURATION=2h ROUND=7 (integration/chaos)
	@sh scripts/java.sh
	@cd integration && SEED=$(SEED) DURATION=$(or $(DURATION),10m) ROUND=$(ROUND) go test -count=1 -timeout 0 -v -run '^TestChaos$$' ./chaos

chaosmutants: export LEASEHOLD_MUTANTS = 1
chaosmutants: redis ## break the locks in several ways; make chaos and make upgrade must detect each of them
	cd integration && go test -count=1 -timeout 1h -v -run '^Test(Upgrade)?Mutants$$' ./chaos

upgrade: export LEASEHOLD_REQUIRE_REDIS = 1
upgrade: export LEASEHOLD_UPGRADE = 1
upgrade: redis ## run clients of this version and of the latest release, or of OLD=v0.1.0 or a commit, on the same keys
	@cd integration && OLD=$(OLD) SEED=$(SEED) go test -count=1 -timeout 25m -v -run '^TestUpgrade$$' ./chaos

fuzz: ## run every fuzz test with FUZZTIME=20000x inputs, as many in parallel as there are processors
	@sh scripts/fuzz.sh $(FUZZTIME)

# With BENCH, it prints tables only. Without, it writes them into the pages.
bench: redis ## run the benchmarks, into docs/evidence/performance*.md (80 minutes for the locks alone); BENCH='-h' for less
	@if command -v mvn >/dev/null; then mvn -B -q -f integration/redisson package; peers="-redisson ../../integration/redisson/target/driver.jar"; fi; \
	if module=$$(sh scripts/servers.sh redisbloom); then peers="$$peers -module $$module"; fi; \
	cd proof/benchmarks && $(if $(BENCH),go run . $$peers $(BENCH),go run . $$peers -set locks -doc ../../docs/evidence/performance.md -pictures ../../docs/pictures && go run . $$peers -set kinds -doc ../../docs/evidence/performance-kinds.md)

picture: redis ## record a session of the tool in a terminal as docs/pictures/tool.svg
	cd cmd/leasehold && LEASEHOLD_PICTURES='$(CURDIR)/docs/pictures' go test -count=1 -run '^TestPicture$$' .

fmt: ## run gofmt on everything
	gofmt -w .

tidy: ## run go mod tidy in every module
	$(call each,go mod tidy)

lint: ## check gofmt, go.mod, go vet and staticcheck
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "not formatted; run make fmt:"; echo "$$out"; exit 1; }
	$(call each,go mod tidy -diff)
	$(call each,go vet ./...)
	$(call each,go run $(STATICCHECK) ./...)

systems: ## vet the library and the tool for macOS and Windows
	@set -e; for os in darwin windows; do echo "== $$os"; \
		GOOS=$$os go vet $$(go list ./... | grep -v '/docs/guides$$\|/proof/'); (cd cmd/leasehold && GOOS=$$os go vet ./...); done

# Modules used only in development are left out: no user's program contains them.
licences: ## list the license of each module built into the library, its adapters and the tool
	@cd scripts/sbom && go run . $(addprefix ../../,$(filter-out integration/ proof/% scripts/%,$(MODULES)))

# go run would hide the exit code of govulncheck, which is 3 if it found a vulnerability.
vuln: ## find known vulnerabilities called by code of any module; queries vuln.go.dev, or GOVULNDB
	@GOBIN='$(CURDIR)/.tools' go install $(GOVULNCHECK)
	@set -e; for m in $(MODULES); do echo "== $$m: govulncheck"; \
		(cd $$m; '$(CURDIR)/.tools/govulncheck' -db '$(GOVULNDB)' ./...) || { \
			[ $$? -eq 3 ] || echo "make vuln: nothing is known of $$m. Is there a way to $(GOVULNDB)? GOVULNDB names another database." >&2; exit 1; }; done

api: ## fail on API changes that break users and are not listed in .ci/api (scripts/api.sh)
	@sh scripts/api.sh

links: ## check the external links of the pages
	@sh scripts/links.sh

ci: ## run what CI runs
	.ci/run
