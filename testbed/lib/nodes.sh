# Nodes: containers that live, die and are asked how they are.
# Sourced after engine.sh, not run.
# shellcheck shell=bash

# cluster_key RELEASE: a cluster made from anything else is another cluster.
cluster_key() {
  echo "$1 $(image_tag "$1") $(hash_of "$TESTBED/inside" "$TESTBED/etc" "$TESTBED/lib/nodes.sh") $(sif_dir) $CHECKOUT/bin"
}

# cluster_config RELEASE: what all nodes read, in one folder, mounted read-only.
cluster_config() {
  local config=$STATE/config keys=$STATE/keys node user
  mkdir -p "$keys" "$config/secret"
  chmod 700 "$keys" "$config/secret"
  # Keys are made once and kept: a host is known again after any boot.
  [[ -e $keys/munge.key ]] || head -c 1024 /dev/urandom >"$keys/munge.key"
  for node in "${NODES[@]}"; do
    [[ -e $keys/$node.ssh_host_ed25519_key ]] ||
      ssh-keygen -q -t ed25519 -N '' -C "root@$node" -f "$keys/$node.ssh_host_ed25519_key"
  done
  for user in ada bob; do
    [[ -e $keys/$user ]] || ssh-keygen -q -t ed25519 -N '' -C "$user@testbed" -f "$keys/$user"
  done
  cp "$keys"/munge.key "$keys"/*.ssh_host_ed25519_key "$config/secret/"
  for node in "${NODES[@]}"; do
    echo "$node,${ADDRESS[$node]} $(cut -d' ' -f1,2 "$keys/$node.ssh_host_ed25519_key.pub")"
  done >"$config/ssh_known_hosts"
  rm -rf "$config/inside"
  cp -a "$TESTBED/inside" "$TESTBED"/etc/{hosts,slurm,modulefiles} "$config/"
  # What a release wants otherwise.
  if [[ -d $TESTBED/etc/slurm-$1 ]]; then cp -a "$TESTBED/etc/slurm-$1/." "$config/slurm/"; fi
  chmod -R go+rX "$config/inside" "$config/slurm" "$config/modulefiles"
  # slurmdbd refuses a file that others can read; 64030 is Debian's slurm.
  chown 64030:64030 "$config/slurm/slurmdbd.conf"
  chmod 600 "$config/slurm/slurmdbd.conf"
  chmod 755 "$config"
}

# cluster_folders: the shared file system.
cluster_folders() {
  local user id home
  install -d -m 755 "$STATE" "$STATE/home" "$STATE/scratch" "$CHECKOUT/bin"
  for user in ada:2001 bob:2002; do
    IFS=: read -r user id <<<"$user"
    home=$STATE/home/$user
    install -d -m 700 -o "$id" -g "$id" "$STATE/scratch/$user"
    [[ -d $home ]] && continue
    install -d -m 700 -o "$id" -g "$id" "$home"
    install -d -m 700 -o "$id" -g "$id" "$home/.ssh"
    install -m 600 -o "$id" -g "$id" "$STATE/keys/$user" "$home/.ssh/id_ed25519"
    install -m 644 -o "$id" -g "$id" "$STATE/keys/$user.pub" "$home/.ssh/id_ed25519.pub"
    install -m 600 -o "$id" -g "$id" "$STATE/keys/$user.pub" "$home/.ssh/authorized_keys"
    for file in .bashrc .profile .bash_logout; do
      install -m 644 -o "$id" -g "$id" "/etc/skel/$file" "$home/$file" 2>/dev/null || true
    done
  done
}

# cluster_wipe: jobs, accounts, homes and scratch go; images and keys stay.
cluster_wipe() {
  local user
  rm -rf "$STATE/nodes" "${STATE:?}/home" "$STATE/config"
  for user in ada bob; do rm -rf "${STATE:?}/scratch/$user"; done
  rm -f "$STATE/key"
}

# node_create NODE IMAGE
node_create() {
  local node=$1 image=$2 dir=$STATE/nodes/$1 pid stat
  mkdir -p "$dir/tmp" "$dir/vartmp" "$dir/var"
  rm -f "$dir/pid"
  engine run -d --init --privileged --name "$PREFIX-$node" --hostname "$node" \
    --network "$NETWORK" --ip "${ADDRESS[$node]}" --shm-size 1g \
    --tmpfs /run:rw,nosuid,nodev,mode=755,size=256m \
    -v "$STATE/home:/home" -v "$STATE/scratch:/scratch" \
    -v "$dir/tmp:/tmp" -v "$dir/vartmp:/var/tmp" -v "$dir/var:/var/lib/testbed" \
    -v "$STATE/config:/opt/testbed:ro" -v "$CHECKOUT/bin:/opt/hpcexec/bin:ro" \
    "$image" /opt/testbed/inside/boot >"$dir/create.log" 2>&1 ||
    die "the container of $node could not be started: $(tail -n 3 "$dir/create.log")"
  pid=$(engine_pid "$node")
  stat=$(cat "/proc/$pid/stat" 2>/dev/null) || die "the container of $node ended at once"
  # testbed/on finds the node by these: a pid alone could be used again.
  stat=${stat##*) }
  # shellcheck disable=SC2086
  set -- $stat
  echo "$pid ${20}" >"$dir/pid"
}

# node_remove NODE…
node_remove() {
  local node
  for node in "$@"; do rm -f "$STATE/nodes/$node/pid"; done
  engine_remove "$@"
}

# node_healthy NODE: asks it; says on stdout what is wrong.
node_healthy() {
  local mount
  timeout 40 "$TESTBED/on" "$1:root" /opt/testbed/inside/healthy 2>&1 9>&- || return 1
  read -r mount _ <"$STATE/nodes/$1/pid"
  [[ /proc/$mount/root/opt/hpcexec/bin -ef $CHECKOUT/bin ]] || {
    echo "$1: its hpcexec is not of this checkout"
    return 1
  }
}

# nodes_wait SECONDS NODE…: until all are healthy.
nodes_wait() {
  local end=$((SECONDS + $1)) why node
  shift
  for node in "$@"; do
    until why=$(node_healthy "$node"); do
      ((SECONDS < end)) || {
        printf 'testbed: %s\n' "${why:-$node: no answer}" "logs: $STATE/nodes/$node/var/log" >&2
        return 1
      }
      [[ $why == *"boot failed"* ]] && { printf 'testbed: %s\n' "$why" "logs: $STATE/nodes/$node/var/log" >&2; return 1; }
      sleep 0.2
    done
    say "$node is healthy"
  done
}

# slurm_resume: a node that was drained or down in the past serves again.
slurm_resume() {
  local node
  for node in "${NODES[@]}"; do
    [[ $node == login ]] && continue
    if [[ $("$TESTBED/on" login:root sinfo -h -N -n "$node" -o %T 2>/dev/null | head -n 1) =~ ^(drain|down|fail) ]]; then
      "$TESTBED/on" login:root scontrol update "nodename=$node" state=resume 2>/dev/null || true
    fi
  done
}
