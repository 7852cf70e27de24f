# The nodes' root file system. Sourced after common.sh and engine.sh, not run.
# shellcheck shell=bash

# Debian's release for a Slurm release, and where Slurm is pinned from when the
# root is another one (Apptainer needs the libc of Debian 13).
image_suites() { # sets ROOT_SUITE and EXTRA_SUITES
  case $1 in
    22.05) ROOT_SUITE=trixie EXTRA_SUITES=(bookworm sid) ;;
    24.11) ROOT_SUITE=trixie EXTRA_SUITES=(sid) ;;
    26.05) ROOT_SUITE=sid EXTRA_SUITES=() ;;
    *) die "no recipe for Slurm $1 (there are 22.05, 24.11 and 26.05)" ;;
  esac
}

# debian_mirror: the address from which this machine itself gets Debian;
# HPCEXEC_TESTBED_MIRROR names one where the machine is not a Debian.
debian_mirror() {
  local try uri=${HPCEXEC_TESTBED_MIRROR:-}
  for try in as-it-is updated; do
    [[ $try == updated ]] && apt-get update >/dev/null
    # shellcheck disable=SC2016 # apt's variables, not the shell's
    [[ $uri ]] || uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' |
      awk '$3 == "Debian" && $1 !~ /security/ && !found { print $1; found = 1 }')
    [[ $uri ]] && break
  done
  [[ $uri ]] || die "this machine's apt names no Debian mirror: set HPCEXEC_TESTBED_MIRROR"
  echo "$uri"
}

# debootstrap SUITE TARGET ARGUMENT…: mmdebstrap with what both roots share.
# The index of sid may be past its Valid-Until date; signatures stay checked.
debootstrap() {
  local suite=$1 target=$2
  shift 2
  mmdebstrap --variant=minbase --quiet \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$target" "$@"
}

# image_tag RELEASE: named by its recipe, so that a changed one is another image.
image_tag() {
  local recipe
  recipe=$({ hash_of "$TESTBED/image"; declare -f image_suites debootstrap; } | sha256sum | cut -c1-12)
  echo "localhost/hpcexec-node:$1-$recipe"
}

# image_build RELEASE: makes the image unless the engine has it.
image_build() {
  local release=$1 tag mirror suite log=$STATE/log/image.log
  tag=$(image_tag "$release")
  engine_has_image "$tag" && return
  image_suites "$release"
  mirror=$(debian_mirror)
  local -a sources=()
  for suite in "$ROOT_SUITE" "${EXTRA_SUITES[@]}"; do sources+=("deb $mirror $suite main"); done
  say "building the node image for Slurm $release (Debian $ROOT_SUITE; a minute or two, log: $log)"
  {
    debootstrap "$ROOT_SUITE" - \
      --setup-hook="install -D -m 644 '$TESTBED/image/preferences-$release' \"\$1/etc/apt/preferences.d/testbed\"" \
      --include="$(grep -v '^#' "$TESTBED/image/packages" | paste -sd,)" \
      --customize-hook="'$TESTBED/image/customize' \"\$1\"" \
      "${sources[@]}" | engine_import "$tag-partial" &&
      # A pipe that broke off has left an image as well: named only now.
      engine tag "$tag-partial" "$tag" &&
      engine rmi "$tag-partial"
  } >"$log" 2>&1 9>&- || die "the node image could not be built: see $log"
}
