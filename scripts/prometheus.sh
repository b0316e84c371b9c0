#!/bin/sh
# Makes sure that prometheus and promtool are installed, for the tests of the dashboard and the
# alerts. Does nothing, silently, if they are, or if LEASEHOLD_PROMETHEUS, which the tests prefer,
# names their directory.
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

# install installs the first package that exists.
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

# The tests use their own ports. A service started by the package is useless but harmless, so
# failures here do not matter.
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
		[ "$manager" = brew ] || stop # brew starts no services
		exit 0
	fi
	break
done

say "no prometheus and promtool, and none could be installed."
say "Install them by hand, or name their directory in LEASEHOLD_PROMETHEUS."
exit 1
