#!/usr/bin/env sh
# Makes a release in this clone, without pushing anything: the changelog, a commit and a tag for each module, a bill of
# materials (CycloneDX) for each module, the tool for each system, and the checksums. Everything to upload is in
# dist/VERSION. It prints the commands that publish the release.
#
#	sh scripts/release.sh v0.1.0
#	RELEASE_BUILD=no sh scripts/release.sh v0.1.0       resolves all packages but compiles none of them
#	RELEASE_UNSIGNED=yes sh scripts/release.sh v0.1.0   signs nothing
#	RELEASE_PROXY=/tmp/proxy sh scripts/release.sh v0.1.0   also makes a module proxy: GOPROXY=file:///tmp/proxy installs the release
#
# The tags and the checksums are signed with an SSH key, from the file RELEASE_KEY or git's user.signingkey.
# docs/release_keys must list it. docs/operate/security.md tells users how to verify them.
#
# The library is tagged first. During development, the modules that need it have a replace directive, which "go install
# …@v0.1.0" rejects. A second commit therefore requires the release instead and gets the tags of those modules; a third
# one restores the replace directives.
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

cache=$(mktemp -d)
trap 'chmod -R u+w "$cache"; rm -rf "$cache"' EXIT

# sign writes a signature of its standard input.
sign() { ssh-keygen -q -Y sign -n leasehold-release -f "$key"; }

# tag makes the tag $1 with the message $2.
tag() {
	if [ -n "$key" ]; then
		git -c gpg.format=ssh -c user.signingkey="$key" tag -s "$1" -m "$2"
	else
		git tag -a "$1" -m "$2"
	fi
}

key=
if [ "${RELEASE_UNSIGNED:-no}" != yes ]; then
	key=${RELEASE_KEY:-$(git config --type=path user.signingkey || true)}
	[ -n "$key" ] || fail "there is no key to sign with: set RELEASE_KEY to the file of an SSH key, or RELEASE_UNSIGNED=yes"
	echo proof | sign >"$cache/proof" || fail "$key does not sign; it must be the file of an SSH key"
	echo proof | ssh-keygen -q -Y verify -f docs/release_keys -I release -n leasehold-release -s "$cache/proof" ||
		fail "docs/release_keys does not list $key"
fi

# The modules that users import or install. The others are for development.
modules=$(ls -d */go.mod */*/go.mod | sed 's,/go.mod$,,' | grep -v -x -e integration -e proof/benchmarks -e proof/sim -e scripts/sbom)

(cd scripts/sbom && go build -o "$cache/sbom" .)

# 1. The library.
day=$(date -u +%Y-%m-%d)
awk -v heading="## $version ($day)" '{ print } /^## Unreleased$/ { print ""; print heading }' CHANGELOG.md >"$cache/changelog"
cat "$cache/changelog" >CHANGELOG.md
git commit -q -m "Release $version" CHANGELOG.md
tag "$version" "$module $version"

# 2. The modules that need it. git finds the release in this clone, because it is not pushed yet, and go keeps it in a
# temporary cache.
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

# replaced lists the paths in a module's replace directives.
replaced() { (cd "$1" && go mod edit -print | awk '{ for (i = 2; i <= NF; i++) if ($i == "=>") print $(i - 1) }'); }

for least in 1 2 3; do # modules with fewer replace directives first
	for m in $modules; do
		[ "$(replaced "$m" | wc -l)" -eq "$least" ] || continue
		for path in $(replaced "$m"); do
			(cd "$m" && go mod edit -dropreplace="$path" -require="$path@$version")
		done
		(cd "$m" && go mod tidy && check)
		git commit -q -m "Release $m $version" "$m/go.mod" "$m/go.sum"
		tag "$m/$version" "$module/$m $version"
	done
done

# 3. The bill of materials: each module that is built in, with its version, checksum and license.
dist=$PWD/dist/$version
mkdir -p "$dist"
bill() { "$cache/sbom" -release "$version" "$1" >"$dist/$2-$version.cdx.json"; }
bill . leasehold
for m in $modules; do
	bill "$m" "$(echo "$m" | tr / -)"
done

# 4. The checksums; for modules in the format of go.sum, because no checksum database has them yet.
for path in "$module" $(for m in $modules; do echo "$module/$m"; done); do
	json=$(cd "$cache" && go mod download -json "$path@$version")
	echo "$json" | sed -n \
		-e "s,.*\"Sum\": \"\([^\"]*\)\".*,$path $version \1,p" \
		-e "s,.*\"GoModSum\": \"\([^\"]*\)\".*,$path $version/go.mod \1,p"
done >"$dist/leasehold-$version.go.sum"
if [ -n "${RELEASE_PROXY:-}" ]; then
	for path in "$module" $(for m in $modules; do echo "$module/$m"; done); do
		mkdir -p "$RELEASE_PROXY/$path"
		cp -r "$cache/cache/download/$path/@v" "$RELEASE_PROXY/$path/"
	done
fi

# 5. The tool, for each system.
sh scripts/archives.sh "$version" "$dist"

(cd "$dist" && sha256sum -- *.cdx.json *.go.sum *.tar.gz *.zip >SHA256SUMS)
if [ -n "$key" ]; then
	sign <"$dist/SHA256SUMS" >"$dist/SHA256SUMS.sig"
fi

# 6. Restore the development state.
for m in $modules; do
	git checkout -q "$version" -- "$m/go.mod" "$m/go.sum"
done
git commit -q -m "Develop the modules of this repository together again"

tags="$version $(for m in $modules; do printf '%s/%s ' "$m" "$version"; done)"
cat <<EOF

The release is in this clone. To publish it:

	make vuln
	git push origin HEAD:main $tags
	gh release create $version --notes-file dist/notes.md dist/$version/*

and then let the API check begin at the release: sh scripts/api.sh $version
EOF
sed -n "/^## $version/,/^## v/p" CHANGELOG.md | sed '1d;$d' >dist/notes.md
