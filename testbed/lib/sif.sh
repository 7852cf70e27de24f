# The container images of the cluster's users, /scratch/images/*.sif.
# Sourced after image.sh, not run.
# shellcheck shell=bash

sif_dir() { echo "$CACHE/sif-$(hash_of "$TESTBED/sif")"; }

# sif_root: base.sif's root as a folder; needs no node image, so that it can be
# made while that one is.
sif_root() {
  local dir
  dir=$(sif_dir)
  [[ -e $dir/done || -e $dir/root.done ]] && return
  rm -rf "$dir"
  mkdir -p "$dir"
  debootstrap trixie "$dir/root" \
    --include="$(grep -v '^#' "$TESTBED/sif/packages" | paste -sd,)" \
    "deb $(debian_mirror) trixie main" >"$STATE/log/sif-root.log" 2>&1 9>&- ||
    die "the root of base.sif could not be built: see $STATE/log/sif-root.log"
  touch "$dir/root.done"
}

# sif_build IMAGE: packs both SIFs with the Apptainer of the node image.
sif_build() {
  local dir log=$STATE/log/sif.log
  dir=$(sif_dir)
  [[ -e $dir/done ]] && return
  say "packing base.sif and busybox.sif"
  engine run --rm --privileged --network none -v "$dir:/sif" -v "$TESTBED/sif:/recipe:ro" "$1" /recipe/build /sif >"$log" 2>&1 ||
    die "the SIFs could not be packed: see $log"
  rm -rf "$dir/root" "$dir/root.done"
  touch "$dir/done"
}

# sif_install: a copy for the cluster, replaced whole so that what runs from the
# old one goes on.
sif_install() {
  local to=$STATE/scratch/images sif
  mkdir -p "$to"
  [[ $(cat "$to/.from" 2>/dev/null) == "$(sif_dir)" ]] && return
  for sif in base busybox; do
    install -m 644 "$(sif_dir)/$sif.sif" "$to/.$sif.sif"
    mv -f "$to/.$sif.sif" "$to/$sif.sif"
  done
  sif_dir >"$to/.from"
}
