#!/usr/bin/env bash
# Installs what the tests' servers need, on Debian and Ubuntu: redis-server,
# ZooKeeper's jars, a Java runtime, and a C compiler for Go's race detector. Says
# what to install elsewhere. Quick when everything is there. It starts and stops
# no service. DEPS=images installs what building container images needs instead.
set -euo pipefail

say() { printf 'deps: %s\n' "$*"; }

packages=()
need() { packages+=("$1"); }

if [ "${DEPS:-servers}" = images ]; then
	PATH=$PATH:/usr/sbin command -v debootstrap >/dev/null || need debootstrap
else
	command -v redis-server >/dev/null || need redis-server
	if [ -z "${JAVA_HOME:-}" ]; then command -v java >/dev/null || need default-jre-headless; fi
	if [ -z "${DISTLOCK_ZOOKEEPER_CLASSPATH:-}" ] && [ -z "${ZOOKEEPER_HOME:-}" ]; then
		found=
		for jar in /usr/share/java/zookeeper.jar /opt/homebrew/opt/zookeeper/libexec/lib/zookeeper-*.jar \
			/usr/local/opt/zookeeper/libexec/lib/zookeeper-*.jar /opt/zookeeper/lib/zookeeper-*.jar; do
			if [ -e "$jar" ]; then found=$jar; fi
		done
		[ -n "$found" ] || need zookeeper
	fi
	# The race detector links with a C compiler.
	cc=$(go env CC)
	if ! command -v "${cc%% *}" >/dev/null || ! printf '#include <stdlib.h>\nint main(void){return 0;}\n' | $cc -x c -o /dev/null - 2>/dev/null; then
		need gcc
		need libc6-dev
	fi
fi

if [ ${#packages[@]} = 0 ]; then
	say "everything is there"
	exit 0
fi

if ! command -v apt-get >/dev/null; then
	cat >&2 <<-TEXT
	deps: missing, by the names of Debian's packages: ${packages[*]}
	deps: there is no apt-get here; install them yourself:
	  redis-server          Redis 6.2 or newer (macOS: brew install redis)
	  zookeeper             ZooKeeper 3.5 or newer (macOS: brew install zookeeper);
	                        an unpacked release does too: set ZOOKEEPER_HOME
	  default-jre-headless  any Java runtime from 11 on, in PATH or JAVA_HOME
	  gcc, libc6-dev        a C compiler for the race detector (macOS: xcode-select --install)
	  debootstrap           only for make images
	TEXT
	exit 1
fi

sudo=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { say "run as root: apt-get install ${packages[*]}" >&2; exit 1; }
	sudo=sudo
fi
say "installing ${packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" >"$log" 2>&1
}
# With the package lists as they are; if they are old or absent, with new ones.
install || { $sudo apt-get update >"$log" 2>&1 && install; } || { tail -n 20 "$log" >&2; exit 1; }
say "done"
