#!/bin/sh
# Builds the tool for each system, and packs it with its manual pages, completion scripts and license:
#
#	sh scripts/archives.sh VERSION DIST
#
# The binaries are identical to those of "go install …/cmd/leasehold@VERSION", so anyone can reproduce them.
# scripts/release.sh sets GOPROXY, from which Go gets that version. The archives are reproducible.
set -eu
version=$1 dist=$2
cd "$(dirname "$0")/.."
module=$(go list -m)
temp=$(mktemp -d)
trap 'chmod -R u+w "$temp"; rm -rf "$temp"' EXIT
day=$(git log -1 --format=%cs "$version")

(cd cmd/leasehold && go run -trimpath -tags man . man "$temp/common" "$day")
cp LICENSE "$temp/common/"
(cd scripts/sbom && go build -o "$temp/archive" ./archive)
for target in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do
	GOOS=${target%/*} GOARCH=${target#*/}
	export GOOS GOARCH
	GOPATH=$temp/go GOBIN='' CGO_ENABLED=0 GOFLAGS=-trimpath go install -ldflags=-s "$module/cmd/leasehold@$version"
	name=leasehold-$version-$GOOS-$GOARCH
	mkdir "$temp/$name"
	cp -r "$temp/common/." "$temp/$name/"
	find "$temp/go/bin" -type f -name 'leasehold*' -exec mv {} "$temp/$name/" \;
	case $GOOS in
	windows) "$temp/archive" "$dist/$name.zip" "$temp/$name" "$day" ;;
	*) "$temp/archive" "$dist/$name.tar.gz" "$temp/$name" "$day" ;;
	esac
done
