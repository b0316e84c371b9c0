#!/bin/sh
# Builds the image of the tool from its Linux binary and the CA certificates of this machine:
#	sh scripts/image.sh TAG [BINARY]
#
# Without BINARY, it builds one.
set -eu
tag=${1:?usage: sh scripts/image.sh TAG [BINARY]}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
[ -z "${2:-}" ] || cp "$2" "$context/leasehold" # before cd: the path can be relative
cd "$(dirname "$0")/.."
if [ ! -f "$context/leasehold" ]; then
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
