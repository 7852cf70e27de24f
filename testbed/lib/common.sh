# Names and places that every script of the testbed shares. Sourced, not run.
# shellcheck shell=bash disable=SC2034

TESTBED=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CHECKOUT=$(dirname "$TESTBED")

# STATE is the cluster that runs now (one a machine); CACHE outlives it.
STATE=${HPCEXEC_TESTBED_STATE:-/var/lib/hpcexec-testbed}
CACHE=${HPCEXEC_TESTBED_CACHE:-/var/cache/hpcexec-testbed}

PREFIX=hpcexec
NETWORK=hpcexec-testbed
SUBNET=10.213.77.0/24
NODES=(login cpu1 gpu1 gpu2)
declare -A ADDRESS=([login]=10.213.77.10 [cpu1]=10.213.77.11 [gpu1]=10.213.77.21 [gpu2]=10.213.77.22)

say() { printf '%4ds  %s\n' "$SECONDS" "$*" >&2; }

die() {
  printf 'testbed: %s\n' "$*" >&2
  exit 1
}

is_node() {
  local n
  for n in "${NODES[@]}"; do [[ $n == "$1" ]] && return 0; done
  return 1
}

# hash_of FILE…: a short name for the contents of files and folders.
hash_of() {
  find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum | cut -c1-12
}

# lock: cluster-up, cluster-down and node are exclusive on the machine. The
# descriptor must not leak into what they start, or the lock would outlive
# them: long-lived children are started with 9>&-.
lock() {
  mkdir -p "$STATE"
  exec 9>"$STATE/lock"
  flock -w 900 9 || die "another testbed command has held $STATE/lock for 15 minutes"
}
