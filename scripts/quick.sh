#!/bin/sh
# Runs the short tests of modules: those of the first, and next to them those of the others, one module after the other. Tests wait
# more than they work.
#
#	sh scripts/quick.sh ./ contrib/bridge/ contrib/httplock/
#
# It prints what the others say when the first has ended, and fails if a module does.
set -eu
log=$(mktemp)
others=
trap 'rm -f "$log"' EXIT
trap '[ -z "$others" ] || kill "$others" 2>/dev/null; exit 130' INT TERM

tests() {
	echo "== $1: go test -short"
	(cd "$1" && go test -short -count=1 -timeout 15m ./...)
}

first=$1
shift
(
	result=0
	for module; do
		tests "$module" || result=$?
	done
	exit "$result"
) >"$log" 2>&1 &
others=$!
result=0
tests "$first" || result=$?
wait "$others" || result=$?
cat "$log"
exit "$result"
