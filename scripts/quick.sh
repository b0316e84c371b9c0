#!/bin/sh
# Runs the short tests of modules: those of the first module, in parallel with those of the others, one after the other.
# Tests mostly wait, so more packages and tests run at once than there are processors.
#
#	sh scripts/quick.sh ./ contrib/bridge/ contrib/httplock/
#
# The output of the other modules is printed when the first module has finished. The script fails if any module fails.
# On a terminal it shows progress.
set -eu
at_once=$((2 * $(getconf _NPROCESSORS_ONLN)))
log=$(mktemp)
said=$(mktemp) # the output of the first module
others= shows=
finish() {
	for pid in $others $shows; do kill "$pid" 2>/dev/null || true; done
	[ -z "$shows" ] || printf '\r\033[K' >&2
	rm -f "$log" "$said"
}
trap finish EXIT
trap 'exit 130' INT TERM

# progress shows how long the tests have run, and how many packages are done.
progress() {
	began=$(date +%s)
	while sleep 1; do
		printf '\r\033[K%s s, %s packages are done' $(($(date +%s) - began)) "$(cat "$log" "$said" | grep -cE '^(ok|FAIL|\?)[[:space:]]+[^[:space:]]')" >&2
	done
}

tests() {
	echo "== $1: go test -short"
	(cd "$1" && go test -short -count=1 -timeout 15m -p "$at_once" -parallel 16 ./...)
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
if [ -t 2 ]; then
	progress &
	shows=$!
	{ tests "$first" 2>&1 || echo "== $first failed"; } | tee "$said" | while IFS= read -r line; do printf '\r\033[K%s\n' "$line"; done
	! grep -qx "== $first failed" "$said" || result=1
else
	tests "$first" || result=$?
fi
wait "$others" || result=$?
others=
[ -z "$shows" ] || { kill "$shows"; shows=; printf '\r\033[K' >&2; }
cat "$log"
exit "$result"
