#!/bin/sh
# Makes sure that a JDK (17 or later) and Maven are on the PATH, for the tests against Redisson, and
# that the driver of those tests is built, so that Maven has its downloads. Does nothing, silently,
# if all of it is there.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
say() { echo "java.sh: $*" >&2; }

# jdk succeeds if the major version of the compiler, such as 17 of "javac 17.0.15", is recent
# enough.
jdk() {
	version=$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
	[ "${version:-0}" -ge 17 ]
}
complete() { have java && have javac && have mvn && jdk; }

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

# install installs what is missing, with the first package manager found.
install() {
	maven=maven
	have mvn && maven=
	case $1 in
	apt-get)
		root apt-get update </dev/null >&2 || say "apt-get update failed; going on with the old lists"
		for jdk in openjdk-21-jdk-headless openjdk-17-jdk-headless default-jdk-headless; do
			have javac && jdk && jdk=
			# shellcheck disable=SC2086 # nothing to install is nothing
			root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $jdk $maven && complete && return 0
		done
		;;
	dnf | yum)
		for jdk in java-21-openjdk-devel java-17-openjdk-devel java-latest-openjdk-devel; do
			root "$1" install -y $jdk $maven && complete && return 0
		done
		;;
	apk)
		for jdk in openjdk21 openjdk17; do
			root apk add --no-cache $jdk $maven && complete && return 0
		done
		;;
	brew) HOMEBREW_NO_AUTO_UPDATE=1 brew install openjdk $maven && complete && return 0 ;;
	esac </dev/null >&2
	return 1
}

if ! complete; then
	for manager in apt-get dnf yum apk brew; do
		have "$manager" || continue
		say "installing a JDK and Maven with $manager"
		install "$manager" || true
		break
	done
fi
if ! complete; then
	say "no JDK of version 17 or later, or no Maven, and they could not be installed."
	say "Install them by hand."
	exit 1
fi

# The tests rebuild it when its sources are newer.
cd "$(dirname "$0")/../integration/redisson"
if [ ! -f target/driver.jar ]; then
	say "building integration/redisson"
	mvn -B -q package </dev/null >&2
fi
