#!/bin/sh
# Finds out which tests fail on a busy machine, and how often. Runs packages repeatedly, several at once, next to busy
# loops.
#
#   sh scripts/flaky.sh                      the timing-sensitive packages: ROUNDS=10, JOBS=1 at once, next to LOAD=8 busy loops
#   ROUNDS=50 sh scripts/flaky.sh watchdog internal/session
#   sh scripts/flaky.sh 'integration:^TestLostReply$'     these tests of a package
#   ROUNDS=50 JOBS=10 LOAD=0 sh scripts/flaky.sh all      every package of every module, and Redisson
#   SHORT=true ROUNDS=50 JOBS=4 LOAD=0 sh scripts/flaky.sh all      the same, with histories one tenth as long
#
# It prints how often each test failed, and exits with an error if any did. Its directory, $FLAKY or a temporary one,
# keeps the output of failed runs.
set -eu

# once ROUND PACKAGE[:TESTS] runs a package once. xargs calls it below.
once() {
	round=$1 pkg=${2%%:*}
	run=.
	[ "$pkg" = "$2" ] || run=${2#*:}
	name=$(echo "$pkg" | tr / _)
	log=$kept/$name-$round.log
	began=$(date +%s)
	result=0
	(cd "$root/$pkg" && "$bin/$name.test" -test.run "$run" -test.short="$short" -test.timeout "$limit") >"$log" 2>&1 || result=$?
	echo "round $round: $pkg: $([ $result = 0 ] && echo passed || echo RED) in $(($(date +%s) - began)) s, load $(cut -d' ' -f1 /proc/loadavg)"
	if [ $result = 0 ]; then
		rm "$log"
		return
	fi
	# The tests that failed or were running at the timeout; none if the process ended in another way.
	red=$(sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p; /^[[:space:]]*running tests:/,/^$/ s/^[[:space:]]\{1,\}\([A-Z][^ /]*\).*/\1 (time-out)/p' "$log" | sort -u)
	echo "${red:-the process ended}" | sed "s|^|$pkg |" >>"$kept/red"
}
if [ "${1-}" = once ]; then
	once "$2" "$3"
	exit
fi

rounds=${ROUNDS:-10}
load=${LOAD:-8}
root=$(cd "$(dirname "$0")/.." && pwd)
kept=${FLAKY:-$(mktemp -d)}
bin=$(mktemp -d)
limit=${LIMIT:-40m}
short=${SHORT:-false}
export root kept bin limit short LEASEHOLD_REQUIRE_REDIS=1 RAPID_NOFAILFILE=true
mkdir -p "$kept"
busy=
finish() {
	for pid in $busy; do kill "$pid" 2>/dev/null || true; done
	rm -rf "$bin"
}
trap finish EXIT
trap 'exit 130' INT TERM

[ $# -gt 0 ] || set -- watchdog reentrant fairlock rwlock multilock latch semaphore leader ratelimit admin client locktest \
	contrib/asynqlock contrib/bridge contrib/certmagiclock contrib/cronlock contrib/gocronlock contrib/goredisopt contrib/httplock \
	contrib/leaseholdotel contrib/leaseholdprom contrib/synclock docs/programs/http docs/programs/leader docs/programs/limits \
	docs/programs/nightly docs/programs/queue docs/programs/serverless internal/command internal/pubsub \
	internal/redistest internal/session 'integration:^Test(LostReply|Cancel|Handover_(killed|deaf|poller|frozen|outlivesItsLease)|Neighbour)'
if [ "$*" = all ]; then
	export LEASEHOLD_REQUIRE_JAVA=1 LEASEHOLD_REQUIRE_POSTGRES=1 LEASEHOLD_REQUIRE_CHROMIUM=1 LEASEHOLD_REQUIRE_PROMETHEUS=1
	(cd "$root" && sh scripts/java.sh)
	set -- integration
	for mod in "$root"/go.mod "$root"/*/go.mod "$root"/*/*/go.mod; do
		[ -f "$mod" ] || continue
		for dir in $(cd "$(dirname "$mod")" && go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); do
			what=.${dir#"$root"}
			[ "$what" = ./integration ] || set -- "$@" "${what#./}"
		done
	done
fi

for what; do
	pkg=${what%%:*}
	(cd "$root/$pkg" && go test -c -o "$bin/$(echo "$pkg" | tr / _).test" .)
done
for _ in $(seq "$load"); do
	while :; do :; done &
	busy="$busy $!"
done

: >"$kept/red"
for round in $(seq "$rounds"); do
	for what; do echo "$round '$what'"; done
done | xargs -P "${JOBS:-1}" -n 2 sh "$root/scripts/flaky.sh" once

if [ ! -s "$kept/red" ]; then
	echo "None was red in $rounds rounds."
	rm -rf "$kept/red"
	exit 0
fi
echo "Red in $rounds rounds; what they printed is in $kept:"
sort "$kept/red" | uniq -c | sort -rn
exit 1
