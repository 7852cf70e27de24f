# What the machine itself needs. Sourced after common.sh, not run.
# shellcheck shell=bash

packages_install() {
  local -a want=()
  local need package
  # program (or file) and the package that brings it
  while read -r need package; do
    command -v "$need" >/dev/null || [[ -e $need ]] || want+=("$package")
  done <<'EOF'
mmdebstrap mmdebstrap
/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
nsenter util-linux
flock util-linux
ip iproute2
ssh-keygen openssh-client
EOF
  if [[ $ENGINE == podman ]]; then
    while read -r need package; do
      PATH=$PATH:/usr/sbin:/sbin command -v "$need" >/dev/null || [[ -e $need ]] || want+=("$package")
    done <<'EOF'
podman podman
runc runc
conmon conmon
catatonit catatonit
iptables iptables
EOF
    # Older podman reaches networks by CNI plugins, newer by netavark.
    [[ -e /usr/lib/cni/bridge || -e /usr/lib/podman/netavark ]] || want+=(containernetworking-plugins)
  fi
  ((${#want[@]})) || return 0
  say "installing on this machine: ${want[*]}"
  local log=$STATE/log/apt.log
  {
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${want[@]}"
  } >"$log" 2>&1 || die "apt-get could not install ${want[*]}: see $log"
}
