#!/bin/sh
# fuzz.sh INPUTS: gives each fuzz test so many inputs (20000x), as many tests at once as there are processors. If one
# fails, its input is in the folder testdata of its package then, and go test tries it from then on. A time (1h) works too,
# but a test that ends by time fails now and then with "context deadline exceeded" (go.dev/issue/75804, mended in Go 1.27).
set -e
cd "$(dirname "$0")/.."
grep -rHo '^func Fuzz[A-Za-z]*' --include='*_test.go' . | sed 's|/[^/]*:func | |' | sort |
	xargs -P "$(getconf _NPROCESSORS_ONLN)" -L 1 sh -c '
		status=0
		out=$(cd "$1" && go test -run "^$" -fuzz "^$2\$" -fuzztime "$0" -fuzzminimizetime 100x -parallel 1 2>&1) || status=255 # 255 ends xargs
		printf "== %s %s\n%s\n" "$1" "$2" "$out"
		exit $status
	' "${1:-20000x}"
