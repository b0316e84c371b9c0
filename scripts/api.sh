#!/usr/bin/env sh
# Compares the exported API with the one at a given commit. Fails if it breaks users' code in a way that .ci/api
# does not list.
#
#	sh scripts/api.sh           compare
#	sh scripts/api.sh accept    list every break in .ci/api, to be committed with a line of CHANGELOG.md each
#	sh scripts/api.sh COMMIT    compare with COMMIT from now on, and list every break since then
#
# The first line of .ci/api is the commit; a release moves it forward.
set -eu
cd "$(dirname "$0")/.."

APIDIFF=golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e

list=.ci/api
commit=$(head -n 1 "$list")
case ${1:-} in
'' | accept) ;;
*) commit=$(git rev-parse --verify "$1^{commit}") ;;
esac
git cat-file -e "$commit^{commit}" 2>/dev/null || git fetch --quiet --depth 1 origin "$commit" || {
	echo "api: the commit $commit of $list is not here; clone with its history" >&2
	exit 1
}

dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/old" 2>/dev/null || true; rm -rf "$dir"' EXIT
git worktree add --quiet --detach "$dir/old" "$commit"
GOBIN="$dir" go install "$APIDIFF"

module=$(go list -m)
apidiff() {
	"$dir/apidiff" -m "$@" 2>"$dir/errors" || {
		cat "$dir/errors" >&2
		exit 1
	}
}
(cd "$dir/old" && apidiff -w "$dir/old.api" "$module")
apidiff -w "$dir/new.api" "$module"
apidiff -incompatible "$dir/old.api" "$dir/new.api" >"$dir/all"
# These two packages document that their API is not stable.
grep -v -e '^- ./luascripts' -e '^- ./watchdog' "$dir/all" | LC_ALL=C sort >"$dir/broken" || true

if [ $# -gt 0 ]; then
	{ echo "$commit"; cat "$dir/broken"; } >"$list"
	echo "api: $list lists $(wc -l <"$dir/broken") changes since $commit"
	exit
fi
tail -n +2 "$list" | diff - "$dir/broken" >"$dir/diff" || {
	echo "api: exported names changed in a way that breaks code of users (>), or not any more (<), since $commit:" >&2
	cat "$dir/diff" >&2
	echo "api: if that is meant, say so in CHANGELOG.md, and run: sh scripts/api.sh accept" >&2
	exit 1
}
echo "api: nothing breaks that $list does not list"
