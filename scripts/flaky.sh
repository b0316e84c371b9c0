#!/bin/sh
# Which tests are red on a busy machine, and how often. Runs the packages that
# measure time again and again, beside processes that do nothing but compute.
#
#   sh scripts/flaky.sh                      ROUNDS=10, beside LOAD=8 busy loops
#   ROUNDS=50 sh scripts/flaky.sh watchdog internal/session
#   sh scripts/flaky.sh 'integration:^TestLostReply$'     these tests of a package
#
# It prints how often each test was red, and ends with an error if one was. Its
# directory, $FLAKY or one that it makes, keeps what the red ones printed.
set -eu

rounds=${ROUNDS:-10}
load=${LOAD:-8}
limit=${LIMIT:-20m}
[ $# -gt 0 ] || set -- watchdog reentrant fairlock rwlock multilock latch semaphore leader internal/place internal/command internal/send internal/hint \
	internal/session 'integration:^Test(LostReply|Cancel|Handover_(killed|deaf|poller|frozen|outlivesItsLease)|Neighbour)'

root=$(cd "$(dirname "$0")/.." && pwd)
kept=${FLAKY:-$(mktemp -d)}
mkdir -p "$kept"
bin=$(mktemp -d)
busy=
finish() {
	for pid in $busy; do kill "$pid" 2>/dev/null || true; done
	rm -rf "$bin"
}
trap finish EXIT
trap 'exit 130' INT TERM

for what; do
	pkg=${what%%:*}
	(cd "$root/$pkg" && go test -c -o "$bin/$(echo "$pkg" | tr / _).test" .)
done
for _ in $(seq "$load"); do
	while :; do :; done &
	busy="$busy $!"
done

export LEASEHOLD_REQUIRE_REDIS=1 RAPID_NOFAILFILE=true
: >"$kept/red"
round=0
while [ $round -lt "$rounds" ]; do
	round=$((round + 1))
	for what; do
		pkg=${what%%:*}
		run=.
		[ "$pkg" = "$what" ] || run=${what#*:}
		name=$(echo "$pkg" | tr / _)
		log=$kept/$name-$round.log
		began=$(date +%s)
		result=0
		(cd "$root/$pkg" && "$bin/$name.test" -test.run "$run" -test.timeout "$limit") >"$log" 2>&1 || result=$?
		echo "round $round of $rounds: $pkg: $([ $result = 0 ] && echo passed || echo RED) in $(($(date +%s) - began)) s, load $(cut -d' ' -f1 /proc/loadavg)"
		if [ $result = 0 ]; then
			rm "$log"
			continue
		fi
		# A test that failed, one that ran when the time was over, or none where the process ended otherwise.
		red=$(sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p; /^[[:space:]]*running tests:/,/^$/ s/^[[:space:]]\{1,\}\([A-Z][^ /]*\).*/\1 (time-out)/p' "$log" | sort -u)
		echo "${red:-the process ended}" | sed "s|^|$pkg |" >>"$kept/red"
	done
done

if [ ! -s "$kept/red" ]; then
	echo "None was red in $rounds rounds."
	rm -rf "$kept/red"
	exit 0
fi
echo "Red in $rounds rounds; what they printed is in $kept:"
sort "$kept/red" | uniq -c | sort -rn
exit 1
