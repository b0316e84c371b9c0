#!/bin/sh
# Runs the tests of a package in two processes beside each other: those that match an expression, and the others.
#
#	sh scripts/halves.sh integration '^Test[A-G]'
#
# It prints what each says when that one ends, and fails if one of them does.
set -eu
dir=$(mktemp -d)
first=
trap 'rm -rf "$dir"' EXIT
trap '[ -z "$first" ] || kill "$first" 2>/dev/null; exit 130' INT TERM

cd "$1"
go test -c -o "$dir/tests" .
"$dir/tests" -test.run "$2" -test.timeout 25m >"$dir/log" 2>&1 &
first=$!
result=0
"$dir/tests" -test.skip "$2" -test.timeout 25m || result=$?
wait "$first" || result=$?
cat "$dir/log"
exit "$result"
