#!/bin/sh
# Makes sure that Chromium is installed, for the tests of the web page. Does nothing, silently, if
# it is, or if LEASEHOLD_CHROMIUM, which the tests prefer, is set.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
say() { echo "chromium.sh: $*" >&2; }
browser() { have chromium || have chromium-browser || have google-chrome || have google-chrome-stable; }

if [ -n "${LEASEHOLD_CHROMIUM:-}" ] || browser; then
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
	for package in chromium chromium-browser; do
		say "trying to install $package with $1"
		case $1 in
		apt-get) root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" fonts-dejavu-core ;;
		dnf | yum) root "$1" install -y "$package" ;;
		apk) root apk add --no-cache "$package" font-dejavu ;;
		esac </dev/null >&2 && browser && return 0
	done
	return 1
}

for manager in apt-get dnf yum apk; do
	have "$manager" || continue
	if [ "$manager" = apt-get ]; then
		root apt-get update </dev/null >&2 || say "apt-get update failed; going on with the old lists"
	fi
	if install "$manager"; then
		exit 0
	fi
	break
done

say "no Chromium, and none could be installed."
say "Install one by hand, or name one in LEASEHOLD_CHROMIUM."
exit 1
