#!/bin/sh
# Makes sure that ssh-keygen, which signs releases, is on the PATH. Does nothing, silently, if it
# is.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
if have ssh-keygen; then
	exit 0
fi
root() { if [ "$(id -u)" -eq 0 ]; then env "$@"; else sudo -n env "$@"; fi; }
if have apt-get; then
	root apt-get update </dev/null >&2 || true
	root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-client </dev/null >&2
fi
if ! have ssh-keygen; then
	echo "openssh.sh: install OpenSSH's ssh-keygen" >&2
	exit 1
fi
