# The container engine: the only file that knows which one it is.
# Sourced after common.sh, not run.
# shellcheck shell=bash disable=SC2034

# A Docker engine is used where one answers, else podman.
# HPCEXEC_TESTBED_ENGINE=podman|docker decides it by hand.
engine_select() {
  ENGINE=${HPCEXEC_TESTBED_ENGINE:-}
  if [[ -z $ENGINE && -f $STATE/engine ]]; then ENGINE=$(<"$STATE/engine"); fi
  if [[ -z $ENGINE ]]; then
    if command -v docker >/dev/null && timeout 5 docker info >/dev/null 2>&1; then
      ENGINE=docker
    else
      ENGINE=podman
    fi
  fi
  if [[ $ENGINE == podman ]]; then engine_podman_conf; fi
}

# podman is told by a file of ours, so that the machine's /etc stays as it is:
# crun refuses hosts with both cgroup hierarchies, runc takes every one, and
# limits above the machine's own are refused.
engine_podman_conf() {
  mkdir -p "$STATE"
  local runc init nofile nproc
  runc=$(PATH=$PATH:/usr/sbin:/sbin command -v runc || echo /usr/sbin/runc)
  init=$(command -v catatonit || echo /usr/bin/catatonit)
  nofile=$(ulimit -Hn) nproc=4096
  [[ $nofile == unlimited ]] && nofile=20000
  ((nofile > 20000)) && nofile=20000
  cat >"$STATE/containers.conf" <<EOF
[containers]
default_ulimits = ["nofile=1024:$nofile", "nproc=$nproc:$nproc"]
init_path = "$init"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
[engine.runtimes]
runc = ["$runc"]
EOF
  export CONTAINERS_CONF=$STATE/containers.conf
}

engine() { "$ENGINE" "$@" 9>&-; }

engine_has_image() { engine image inspect "$1" >/dev/null 2>&1; }

# engine_import TAG <ROOT.tar
engine_import() { engine import - "$1" >/dev/null; }

engine_network_up() {
  engine network inspect "$NETWORK" >/dev/null 2>&1 && return
  # Names resolve by /etc/hosts: a container DNS can cost seconds a call.
  local -a dns=()
  [[ $ENGINE == podman ]] && dns=(--disable-dns)
  engine network create --internal "${dns[@]}" --subnet "$SUBNET" "$NETWORK" >/dev/null
}

engine_network_down() {
  engine network rm "$NETWORK" >/dev/null 2>&1 || true
  [[ $ENGINE == podman ]] || return 0
  # What podman leaves for the next time: a folder, an empty mount.
  rm -rf "/var/lib/cni/networks/$NETWORK"
  if [[ -z $(ls -A /run/netns 2>/dev/null) ]]; then umount /run/netns 2>/dev/null || true; fi
}

# engine_remove NODE…: gone, whatever state it was in.
engine_remove() {
  local node try
  local -a force=()
  [[ $ENGINE == podman ]] && force=(-t 0)
  for node in "$@"; do
    # podman that still lists a container whose processes were ended from
    # outside fails at first, and has put its record right by then.
    for try in 1 2 3 4 5; do
      engine rm -f "${force[@]}" "$PREFIX-$node" >/dev/null 2>"$STATE/log/remove.log" && break
      engine container inspect "$PREFIX-$node" >/dev/null 2>&1 || break
      ((try < 5)) || die "the container of $node could not be removed: $(tail -n 1 "$STATE/log/remove.log")"
      sleep 0.2
    done
    # An address whose holder was ended from outside stays reserved.
    if [[ $ENGINE == podman ]]; then rm -f "/var/lib/cni/networks/$NETWORK/${ADDRESS[$node]}"; fi
  done
}

engine_pid() { engine inspect --format '{{.State.Pid}}' "$PREFIX-$1" 2>/dev/null || echo 0; }
