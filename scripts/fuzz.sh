#!/bin/sh
# fuzz.sh INPUTS: runs each fuzz test with INPUTS inputs (20000x), as many in parallel as there are processors. The
# input of a failure is stored in the package's testdata, and go test tries it from then on. A duration (1h) works too,
# but tests limited by time occasionally fail with "context deadline exceeded" (go.dev/issue/75804, fixed in Go 1.27).
set -e
cd "$(dirname "$0")/.."
grep -rHo '^func Fuzz[A-Za-z]*' --include='*_test.go' . | sed 's|/[^/]*:func | |' | sort |
	xargs -P "$(getconf _NPROCESSORS_ONLN)" -L 1 sh -c '
		status=0
		out=$(cd "$1" && go test -run "^$" -fuzz "^$2\$" -fuzztime "$0" -fuzzminimizetime 100x -parallel 1 2>&1) || status=255 # 255 ends xargs
		printf "== %s %s\n%s\n" "$1" "$2" "$out"
		exit $status
	' "${1:-20000x}"
