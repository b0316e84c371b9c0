#!/bin/sh
# Makes sure that the programs of a PostgreSQL server (initdb, postgres) are there,
# for the tests that start their own. Says nothing and changes nothing if they
# are, or if LEASEHOLD_POSTGRES names their directory, which the tests prefer; nor
# where those tests do not run: they run on Linux only.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
say() { echo "postgres.sh: $*" >&2; }

# Distributions keep them off the PATH, in a directory for each version. The
# tests look in the same places.
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

# Installs the first of the packages that exists.
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

# The tests use a socket of their own. A service that the package has started is
# only in the way, but harmless: a failure here does not matter.
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
