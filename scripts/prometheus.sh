#!/bin/sh
# Makes sure that the programs prometheus and promtool are there, for the tests of the board and
# the alerts. Says nothing and changes nothing if they are, or if LEASEHOLD_PROMETHEUS names their
# directory, which the tests prefer.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
programs() { have prometheus && have promtool; }
say() { echo "prometheus.sh: $*" >&2; }

if [ -n "${LEASEHOLD_PROMETHEUS:-}" ] || programs; then
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
	for package in prometheus golang-github-prometheus; do
		say "trying to install $package with $1"
		case $1 in
		apt-get) root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" ;;
		dnf | yum) root "$1" install -y "$package" ;;
		apk) root apk add --no-cache "$package" ;;
		brew) HOMEBREW_NO_AUTO_UPDATE=1 brew install "$package" ;;
		esac </dev/null >&2 && programs && return 0
	done
	return 1
}

# The tests use ports of their own. A service that the package has started is
# only in the way, but harmless: a failure here does not matter.
stop() {
	if have systemctl; then
		root systemctl stop prometheus
	elif have service; then
		root service prometheus stop
	fi </dev/null >/dev/null 2>&1 || true
}

for manager in apt-get dnf yum apk brew; do
	have "$manager" || continue
	if [ "$manager" = apt-get ]; then
		root apt-get update </dev/null >&2 || say "apt-get update failed; going on with the old lists"
	fi
	if install "$manager"; then
		[ "$manager" = brew ] || stop # brew starts nothing
		exit 0
	fi
	break
done

say "no prometheus and promtool, and none could be installed."
say "Install them by hand, or name their directory in LEASEHOLD_PROMETHEUS."
exit 1
