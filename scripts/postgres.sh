#!/bin/sh
# Makes sure that initdb and postgres are installed, for the tests that start their own PostgreSQL
# server. Does nothing, silently, if they are, if LEASEHOLD_POSTGRES, which the tests prefer, names
# their directory, or on any system but Linux, where those tests do not run.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
say() { echo "postgres.sh: $*" >&2; }

# Distributions install them outside of the PATH, in a directory for each version. The tests search
# the same directories.
server() {
	for dir in $(echo "$PATH" | tr : ' ') /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql*; do
		[ -x "$dir/initdb" ] && [ -x "$dir/postgres" ] && return 0
	done
	return 1
}

if [ -n "${LEASEHOLD_POSTGRES:-}" ] || [ "$(uname)" != Linux ] || server; then
	exit 0
fi

root() {
	if [ "$(id -u)" -eq 0 ]; then
		env "$@"
	elif have sudo; then
		sudo -n env "$@"
	else
		say "cannot run \"$*\": not root, and there is no sudo"
		return 1
	fi
}

# install installs the first package that exists.
install() {
	for package in postgresql postgresql-server; do
		say "trying to install $package with $1"
		case $1 in
		apt-get) root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" ;;
		dnf | yum) root "$1" install -y "$package" ;;
		apk) root apk add --no-cache "$package" ;;
		esac </dev/null >&2 && server && return 0
	done
	return 1
}

# The tests use their own socket. A service started by the package is useless but harmless, so
# failures here do not matter.
stop() {
	if have systemctl; then
		root systemctl stop postgresql
	elif have service; then
		root service postgresql stop
	fi </dev/null >/dev/null 2>&1 || true
}

for manager in apt-get dnf yum apk; do
	have "$manager" || continue
	if [ "$manager" = apt-get ]; then
		root apt-get update </dev/null >&2 || say "apt-get update failed; going on with the old lists"
	fi
	if install "$manager"; then
		stop
		exit 0
	fi
	break
done

say "no PostgreSQL server, and none could be installed."
say "Install one by hand, or name the directory of initdb and postgres in LEASEHOLD_POSTGRES."
exit 1
