#!/bin/sh
# Runs the tests of a package in several parallel processes: one for each expression, with the tests that match it and
# none of the expressions before it, and one for the remaining tests.
#
#	sh scripts/parts.sh integration '8:^TestConformance' '^Test[A-G]'
#
# A number before an expression sets how many of its parallel tests run at once, for tests that mostly wait. The output
# of all processes is printed at the end; the script fails if any of them fails.
set -eu
dir=$(mktemp -d)
parts=
trap 'rm -rf "$dir"' EXIT
trap 'for pid in $parts; do kill "$pid" 2>/dev/null || true; done; exit 130' INT TERM

cd "$1"
shift
go test -c -o "$dir/tests" .
taken=
# part NAME RUN [PARALLEL] runs the matching tests that no earlier part runs.
part() {
	"$dir/tests" -test.run "$2" ${3:+-test.parallel "$3"} ${taken:+-test.skip "$taken"} -test.timeout 25m >"$dir/$1.log" 2>&1 &
	parts="$parts $!"
	taken="${taken:+$taken|}$2"
}
n=0
for tests; do
	n=$((n + 1))
	case $tests in
	[0-9]*:*) part $n "${tests#*:}" "${tests%%:*}" ;;
	*) part $n "$tests" ;;
	esac
done
part $((n + 1)) .
result=0
for pid in $parts; do wait "$pid" || result=$?; done
cat "$dir"/*.log
exit "$result"
