#!/bin/sh
# Makes sure that spin, the model checker, and a C compiler are on the PATH. Does nothing, silently,
# if they are.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
if have spin && have cc; then
	exit 0
fi
root() { if [ "$(id -u)" -eq 0 ]; then env "$@"; else sudo -n env "$@"; fi; }
if have apt-get; then
	root apt-get update </dev/null >&2 || true
	root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends spin gcc libc6-dev </dev/null >&2
elif have dnf; then
	root dnf install -y spin gcc glibc-devel </dev/null >&2 || true
elif have apk; then
	root apk add --no-cache spin gcc musl-dev </dev/null >&2 || true
elif have brew; then
	brew install spin </dev/null >&2 || true
fi
if ! have spin || ! have cc; then
	echo "spin.sh: install spin (https://spinroot.com) and a C compiler" >&2
	exit 1
fi
