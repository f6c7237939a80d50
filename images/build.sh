#!/usr/bin/env bash
# Builds the container images redis, zookeeper and etcd for the tests without a
# registry: a base image from debootstrap, the servers from the distribution's
# packages, and etcd built from source. Images that exist are kept; REBUILD=1
# builds them anew. BASE=image takes another Debian-like base.
set -euo pipefail
cd "$(dirname "$0")/.."

engine=${DOCKER:-docker}
say() { printf 'images: %s\n' "$*"; }
fail() { printf 'images: %s\n' "$*" >&2; exit 1; }
have() { [ "${REBUILD:-}" != 1 ] && $engine image inspect "$1" >/dev/null 2>&1; }

$engine info >/dev/null 2>&1 || fail "no container engine answers to '$engine info'"

if have distlock-redis:local && have distlock-zookeeper:local && have distlock-etcd:local; then
	say "all there (REBUILD=1 builds them anew)"
	exit 0
fi

tmp=$(mktemp -d)
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
trap '$sudo rm -rf -- "$tmp"' EXIT

# The release and the mirror that this machine's own packages come from; empty
# (debootstrap's defaults) on machines without apt.
release() { (. /etc/os-release && [ "${ID:-}" = debian ] && printf '%s' "${VERSION_CODENAME:-}") 2>/dev/null || true; }
mirror() {
	apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
		awk -v release="$1" '$2 == release && $3 == "main" { print $1; exit }' || true
}

base() {
	if [ -n "${BASE:-}" ]; then return; fi
	BASE=distlock-base:local
	if have "$BASE"; then return; fi
	command -v debootstrap >/dev/null || PATH=$PATH:/usr/sbin
	command -v debootstrap >/dev/null || {
		if command -v apt-get >/dev/null; then
			DEPS=images internal/testbed/install-deps.sh
		else
			fail "debootstrap is missing: install it, or name a Debian image in BASE"
		fi
	}
	local codename url
	codename=$(release)
	codename=${codename:-bookworm}
	url=$(mirror "$codename")
	say "base system $codename by debootstrap (about half a minute)"
	# shellcheck disable=SC2086 # an empty url is no argument
	$sudo debootstrap --variant=minbase "$codename" "$tmp/base" $url >"$tmp/log" 2>&1 || {
		tail -n 20 "$tmp/log" >&2
		fail "debootstrap failed"
	}
	$sudo tar -C "$tmp/base" -c . | $engine import - "$BASE" >/dev/null
}

build() { # name, context
	local image=distlock-$1:local started=$SECONDS
	if have "$image"; then return; fi
	say "$image"
	$engine build --network host --build-arg BASE="${BASE:-}" -t "$image" -f "images/$1.Dockerfile" "$2" >"$tmp/log" 2>&1 || {
		tail -n 20 "$tmp/log" >&2
		fail "building $image failed"
	}
	say "$image built in $((SECONDS - started)) s"
}

mkdir "$tmp/empty" "$tmp/etcd"
if ! have distlock-redis:local || ! have distlock-zookeeper:local; then base; fi
build redis "$tmp/empty"
build zookeeper "$tmp/empty"
cp "$(go run ./internal/testbed/cmd/testbed etcd)" "$tmp/etcd/etcd"
build etcd "$tmp/etcd"
say "done in $SECONDS s"
