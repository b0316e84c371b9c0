#!/bin/sh
# Builds the image of the tool, from the binary for Linux, and from the certificates of this machine:
#
#	sh scripts/image.sh TAG [BINARY]
#
# Without a binary it builds one.
set -eu
tag=${1:?usage: sh scripts/image.sh TAG [BINARY]}
cd "$(dirname "$0")/.."
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
if [ -n "${2:-}" ]; then
	cp "$2" "$context/leasehold"
else
	(cd cmd/leasehold && CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags=-s -o "$context/leasehold" .)
fi
for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
	if [ -f "$file" ]; then
		cp -L "$file" "$context/ca-certificates.crt"
		break
	fi
done
[ -f "$context/ca-certificates.crt" ] || { echo "image.sh: no certificates on this machine; install ca-certificates" >&2; exit 1; }
chmod 755 "$context/leasehold"
chmod 644 "$context/ca-certificates.crt"
DOCKER_BUILDKIT=${DOCKER_BUILDKIT:-0} docker build --quiet --tag "$tag" --file cmd/leasehold/Dockerfile "$context" >/dev/null
