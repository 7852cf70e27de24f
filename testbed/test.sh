#!/usr/bin/env bash
# test.sh [unit|cluster] [PACKAGE…]: what `make test` does: format and vet, all
# unit tests, the build, the cluster, and on it every test with the build tag
# testbed. A test that skips where it is not allowed to, or that didn't run,
# fails. The cluster is ended if it wasn't there before. As root, on Debian.
# `unit` and `cluster` do one half, the latter for some packages if they are
# named. SLURM=22.05 picks another release, RACE=0 leaves out the race detector.
# shellcheck disable=SC2317 # a trap calls end
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
half=${1-all}
(($# == 0)) || shift
only=" $* "
log=$(mktemp -d) bin=bin/test-$$ began=$SECONDS brought_up='' failed=()
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - began)); }
fail() { failed+=("$1"); printf 'FAIL  %s\n' "$1"; }

# Ends what was started, whatever happens.
end() {
  local status=$?
  trap - EXIT INT TERM
  jobs -rp | xargs -r kill
  [[ ! $brought_up ]] || testbed/down >"$log/down" 2>&1 || status=1
  rm -rf "$bin"
  if ((status)); then echo "the logs are in $log"; else rm -rf "$log"; fi
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

# verdicts says what failed, and ends.
verdicts() {
  if ((${#failed[@]})); then
    printf '\n%d FAILED after %d s:\n' ${#failed[@]} $((SECONDS - began))
    printf '  %s\n' "${failed[@]}"
    exit 1
  fi
  printf '\nall passed after %d s\n' $((SECONDS - began))
  exit 0
}

# Unit tests that may skip, and why it says nothing when they do.
may_skip='^(TestNothing)$'

# shown FILE: what failed, from the output of go test -v.
shown() {
  awk 'function forget() { n = 0; failing = 0 }
    /^=== RUN +[^\/]+$/ { forget(); next }
    /^=== / { next }
    /^--- (PASS|SKIP)/ { forget(); next }
    /^--- FAIL/ { for (i = 0; i < n; i++) print kept[i]; print; forget(); failing = 1; next }
    /^(FAIL|panic)/ { print; next }
    /^ *--- PASS/ || /^(PASS|ok|\?)/ { next }
    failing { if (/FAIL/) print; next }
    { kept[n++] = $0 }
    END { for (i = 0; i < n; i++) print kept[i] }' "$1" | cut -c1-1000 | tail -n 300
}

# skipped FILE: the tests in it that skipped and may not.
skipped() { sed -nE 's/^\s*--- SKIP: ([^ ]+).*/\1/p' "$1" | grep -vE "$may_skip"; }

unit() {
  say 'format and vet'
  unformatted=$(gofmt -s -l . 2>&1)
  [[ -z $unformatted ]] || { echo "$unformatted"; fail 'gofmt'; }
  go vet ./... || fail 'go vet'
  go vet -tags testbed ./... || fail 'go vet -tags testbed'

  say 'unit tests'
  if ! timeout 900 go test -v -timeout 9m ./... >"$log/unit" 2>&1; then
    shown "$log/unit"
    fail 'unit tests'
  fi
  for test in $(skipped "$log/unit"); do fail "$test skipped"; done
  echo "$(grep -acE '^\s*--- PASS' "$log/unit") passed"

  # With the race detector: what has many goroutines. It needs a C compiler.
  race=(. ./internal/proctree ./internal/wire ./internal/shim ./sshmux ./cmd/hpcexec)
  if [[ ${RACE-1} != 0 ]] && command -v "$(go env CC)" >/dev/null; then
    say 'unit tests with the race detector'
    if ! CGO_ENABLED=1 timeout 900 go test -race -timeout 9m "${race[@]}" >"$log/race" 2>&1; then
      shown "$log/race"
      fail 'race detector'
    fi
  fi
}

[[ $half == cluster ]] || unit
[[ $half != unit ]] || verdicts

say 'build'
make -s build || { fail 'build'; exit 1; }

say 'cluster'
testbed/on login true 2>/dev/null || brought_up=1
timeout 600 testbed/up ${SLURM:+"$SLURM"} || { fail 'cluster-up'; exit 1; }
timeout 300 testbed/check >"$log/check" 2>&1 || { grep -A2 '^FAIL' "$log/check"; fail 'testbed/check'; }

# tests DIR: the names of the tests in DIR that need the cluster.
tests() {
  local files
  files=$(grep -lx '//go:build testbed' "$1"/*_test.go) || return 0
  # shellcheck disable=SC2086 # one word for each file
  sed -nE 's/^func (Test[A-Z0-9][A-Za-z0-9_]*)\(t \*testing\.T\).*/\1/p' $files
}

# verdict NAME LOG TEST…: every test ran and passed.
verdict() {
  local name=$1 file=$2 test bad=''
  shift 2
  for test in "$@"; do
    grep -aqE "^--- PASS: $test " "$file" || { fail "$name $test"; bad=1; }
  done
  while read -r test; do fail "$name $test skipped"; bad=1; done < <(sed -nE 's/^\s*--- SKIP: ([^ ]+).*/\1/p' "$file")
  [[ $bad ]] && shown "$file"
  [[ ! $bad ]] && echo "$# passed"
}

# start NAME DIR TEST…: the tests of a package, in the background; $log/NAME has
# what they print.
start() {
  local name=$1 dir=$2 pattern binary
  shift 2
  pattern="^($(IFS='|'; echo "$*"))\$"
  if [[ $name == cmd-hpcexec ]]; then
    # It pulls plugs: it runs on the machine that has the cluster.
    timeout 900 go test -tags testbed -count 1 -v -timeout 14m -run "$pattern" "$dir" >"$log/$name" 2>&1 &
    return
  fi
  binary=$bin/$name.test
  if CGO_ENABLED=0 go test -c -tags testbed -o "$binary" "$dir" >"$log/$name" 2>&1; then
    timeout 900 testbed/on login "/opt/hpcexec/$binary" -test.v -test.timeout 14m -test.run "$pattern" >"$log/$name" 2>&1 &
  fi
}

# Most of their time they wait, so several packages run at once; but not the
# one that restarts nodes.
mkdir -p "$bin"
declare -A names=()
packages=()
for dir in $(grep -rlx --include='*_test.go' '//go:build testbed' . | xargs -r -n1 dirname | sort -u); do
  name=${dir#./} name=${name//\//-}
  [[ -z ${only// } || $only == *" ${dir#./} "* ]] || continue
  names[$name]=$(tests "$dir" | xargs)
  [[ ! ${names[$name]} ]] || packages+=("$name=$dir")
done
say "on the cluster: ${packages[*]%%=*}"
for package in "${packages[@]}"; do
  [[ $package != cmd-hpcexec=* ]] || continue
  while (($(jobs -rp | wc -l) >= 3)); do wait -n || :; done
  # shellcheck disable=SC2086 # one word for each test
  start "${package%%=*}" "${package#*=}" ${names[${package%%=*}]}
done
wait
for package in "${packages[@]}"; do
  name=${package%%=*}
  say "on the cluster: $name"
  if [[ $name == cmd-hpcexec ]]; then
    # shellcheck disable=SC2086
    start "$name" "${package#*=}" ${names[$name]}
    wait
  fi
  # shellcheck disable=SC2086
  verdict "$name" "$log/$name" ${names[$name]}
done

say 'what is left'
left=$(testbed/on login squeue --me --noheader 2>&1)
[[ -z $left ]] || { echo "$left"; fail 'jobs of the tests are left'; }

verdicts
