#!/usr/bin/env sh
# Makes a release in this clone, and pushes nothing: the changelog, a commit and a tag for each
# module, and a bill of materials of each (CycloneDX). It prints the commands that publish it.
#
#	sh scripts/release.sh v0.1.0
#	RELEASE_BUILD=no sh scripts/release.sh v0.1.0   finds all packages, but compiles none of them
#
# The library's tag comes first. The modules that need it have a replace line while they are
# developed, which "go install …@v0.1.0" refuses. So a second commit requires the release instead,
# and has the tags of those modules; a third one brings the replace lines back.
set -eu
cd "$(dirname "$0")/.."

version=${1:?usage: sh scripts/release.sh v0.1.0}
module=$(go list -m)
fail() {
	echo "release: $1" >&2
	exit 1
}
echo "$version" | grep -Eq '^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$' || fail "$version is no version, such as v0.1.0"
[ -z "$(git status --porcelain)" ] || fail "the work tree has changes"
! git rev-parse -q --verify "refs/tags/$version" >/dev/null || fail "$version is there already"
sed -n '/^## Unreleased/,/^## v/p' CHANGELOG.md | grep -q '^- ' || fail "CHANGELOG.md says nothing under Unreleased"

# All modules that people import or install. The others are for development.
modules=$(ls -d */go.mod */*/go.mod | sed 's,/go.mod$,,' | grep -v -x -e integration -e benchmarks -e sim -e scripts/sbom)

# 1. The library.
day=$(date -u +%Y-%m-%d)
sed -i "s/^## Unreleased\$/## Unreleased\n\n## $version ($day)/" CHANGELOG.md
git commit -q -m "Release $version" CHANGELOG.md
git tag -a "$version" -m "$module $version"

# 2. The modules that need it. git finds the release here, as nobody has pushed it yet, and go
# keeps it in a cache that ends with this script.
cache=$(mktemp -d)
trap 'chmod -R u+w "$cache"; rm -rf "$cache"' EXIT
(cd scripts/sbom && go build -o "$cache/sbom" .)
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$PWD.insteadOf" GIT_CONFIG_VALUE_0="https://$module"
GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY GOMODCACHE="$cache" GONOSUMDB="$module" GONOPROXY="$module"

# check fails if a package of the module is not there or does not compile.
check() {
	if [ "${RELEASE_BUILD:-yes}" = yes ]; then
		go build -trimpath ./...
	else
		go list -deps ./... >/dev/null
	fi
}

# replaced lists what the replace lines of a module are about.
replaced() { (cd "$1" && go mod edit -print | awk '{ for (i = 2; i <= NF; i++) if ($i == "=>") print $(i - 1) }'); }

for least in 1 2 3; do # those that need fewer of them come first
	for m in $modules; do
		[ "$(replaced "$m" | wc -l)" -eq "$least" ] || continue
		for path in $(replaced "$m"); do
			(cd "$m" && go mod edit -dropreplace="$path" -require="$path@$version")
		done
		(cd "$m" && go mod tidy && check)
		git commit -q -m "Release $m $version" "$m/go.mod" "$m/go.sum"
		git tag -a "$m/$version" -m "$module/$m $version"
	done
done

# 3. What is in them: each module that is built in, with its version, sum and licence.
mkdir -p dist
"$cache/sbom" -release "$version" . >"dist/leasehold-$version.cdx.json"
for m in $modules; do
	"$cache/sbom" -release "$version" "$m" >"dist/$(echo "$m" | tr / -)-$version.cdx.json"
done

# 4. Go on as before.
for m in $modules; do
	git checkout -q "$version" -- "$m/go.mod" "$m/go.sum"
done
git commit -q -m "Develop the modules of this repository together again"

tags="$version $(for m in $modules; do printf '%s/%s ' "$m" "$version"; done)"
cat <<EOF

The release is in this clone. To publish it:

	git push origin HEAD:main $tags
	gh release create $version --notes-file dist/notes.md dist/*.cdx.json

and then let the API check begin at the release: sh scripts/api.sh $version
EOF
sed -n "/^## $version/,/^## v/p" CHANGELOG.md | sed '1d;$d' >dist/notes.md
