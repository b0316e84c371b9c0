#!/bin/sh
# fuzz.sh TIME: runs each fuzz test for TIME, as many at once as there are processors. What an input breaks is in the
# folder testdata of its package then, and is tried by go test from then on.
set -e
cd "$(dirname "$0")/.."
grep -rHo '^func Fuzz[A-Za-z]*' --include='*_test.go' . | sed 's|/[^/]*:func | |' | sort |
	xargs -P "$(nproc)" -L 1 sh -c '
		status=0
		out=$(cd "$1" && go test -run "^$" -fuzz "^$2\$" -fuzztime "$0" -parallel 1 2>&1) || status=255 # 255 ends xargs
		printf "== %s %s\n%s\n" "$1" "$2" "$out"
		exit $status
	' "${1:-10s}"
