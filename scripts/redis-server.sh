#!/bin/sh
# Makes sure that a redis-server or valkey-server is on the PATH, for the tests that start their
# own. Does nothing, silently, if there is one, or if LEASEHOLD_REDIS_SERVER, which the tests
# prefer, names one.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
server() { have redis-server || have valkey-server; }
say() { echo "redis-server.sh: $*" >&2; }

if [ -n "${LEASEHOLD_REDIS_SERVER:-}" ] || server; then
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
	for package in redis-server redis valkey-server valkey; do
		say "trying to install $package with $1"
		case $1 in
		apt-get) root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" ;;
		dnf | yum) root "$1" install -y "$package" ;;
		apk) root apk add --no-cache "$package" ;;
		brew) HOMEBREW_NO_AUTO_UPDATE=1 brew install "$package" ;;
		esac </dev/null >&2 && server && return 0
	done
	return 1
}

# The tests use their own ports. A service started by the package is useless but harmless, so
# failures here do not matter.
stop() {
	for service in redis-server redis valkey-server valkey; do
		if have systemctl; then
			root systemctl stop "$service"
		elif have service; then
			root service "$service" stop
		fi </dev/null >/dev/null 2>&1 || true
	done
}

for manager in apt-get dnf yum apk brew; do
	have "$manager" || continue
	if [ "$manager" = apt-get ]; then
		root apt-get update </dev/null >&2 || say "apt-get update failed; going on with the old lists"
	fi
	if install "$manager"; then
		[ "$manager" = brew ] || stop # brew starts no services
		exit 0
	fi
	break
done

say "no redis-server and no valkey-server, and none could be installed."
say "Install one of them by hand, or name one in LEASEHOLD_REDIS_SERVER."
exit 1
