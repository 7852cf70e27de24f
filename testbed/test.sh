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

# again NAME LOG PACKAGE-OR-FLAG…: runs the packages that failed once more, one
# by one. What passes then is reported as flaky: a bug to mend, of the test
# until shown otherwise, that must not hide what else was found.
again() {
  local name=$1 file=$2 pkgs
  shift 2
  shown "$file"
  mapfile -t pkgs < <(sed -nE 's/^FAIL\s+(\S+)\s.*/\1/p' "$file" | sort -u)
  if ((${#pkgs[@]})) && timeout 900 go test -p 1 -count 1 -timeout 9m "$@" "${pkgs[@]}" >"$file.again" 2>&1; then
    printf 'FLAKY  %s: %s\n' "$name" "${pkgs[*]}"
  else
    [[ ! -f $file.again ]] || shown "$file.again"
    fail "$name"
  fi
}

unit() {
  say 'format and vet'
  unformatted=$(gofmt -s -l . 2>&1)
  [[ -z $unformatted ]] || { echo "$unformatted"; fail 'gofmt'; }
  go vet ./... || fail 'go vet'
  go vet -tags testbed ./... || fail 'go vet -tags testbed'

  say 'unit tests'
  # Most tests wait most of the time: twice as many packages as processors.
  timeout 900 go test -p 4 -v -timeout 14m ./... >"$log/unit" 2>&1 || again 'unit tests' "$log/unit"
  for test in $(skipped "$log/unit"); do fail "$test skipped"; done
  echo "$(grep -acE '^\s*--- PASS' "$log/unit") passed"

  # With the race detector: what has many goroutines. It needs a C compiler.
  race=(. ./internal/proctree ./internal/wire ./internal/shim)
  if [[ ${RACE-1} != 0 ]] && command -v "$(go env CC)" >/dev/null; then
    say 'unit tests with the race detector'
    export CGO_ENABLED=1
    timeout 900 go test -p 4 -race -timeout 14m "${race[@]}" >"$log/race" 2>&1 || again 'race detector' "$log/race" -race
    unset CGO_ENABLED
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

# verdict NAME DIR TEST…: every test ran and passed. Those that did not are run
# once more, alone; see again.
verdict() {
  local name=$1 dir=$2 file=$log/$1 test bad=() skipped
  shift 2
  for test in "$@"; do grep -aqE "^--- PASS: $test " "$file" || bad+=("$test"); done
  skipped=$(sed -nE 's/^\s*--- SKIP: ([^ ]+).*/\1/p' "$file")
  for test in $skipped; do fail "$name $test skipped"; done
  echo "$(($# - ${#bad[@]})) passed"
  ((${#bad[@]})) || return 0
  shown "$file"
  mv "$file" "$file.first"
  start "$name" "$dir" "${bad[@]}"
  wait
  for test in "${bad[@]}"; do
    if grep -aqE "^--- PASS: $test " "$file"; then echo "FLAKY  $name $test"; else fail "$name $test"; fi
  done
  [[ ! ${failed[*]} == *"$name"* ]] || shown "$file"
}

# start NAME DIR TEST…: the tests of a package, in the background; $log/NAME has
# what they print.
start() {
  local name=$1 dir=$2 pattern binary
  shift 2
  pattern="^($(IFS='|'; echo "$*"))\$"
  if [[ $name == cmd-hpcexec ]]; then
    # It pulls plugs: it runs on the machine that has the cluster.
    timeout 1500 go test -tags testbed -count 1 -v -timeout 24m -run "$pattern" "$dir" >"$log/$name" 2>&1 &
    return
  fi
  binary=$bin/$name.test
  if CGO_ENABLED=0 go test -c -tags testbed -o "$binary" "$dir" >"$log/$name" 2>&1; then
    timeout 1500 testbed/on login "/opt/hpcexec/$binary" -test.v -test.timeout 24m -test.run "$pattern" >"$log/$name" 2>&1 &
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
  verdict "$name" "${package#*=}" ${names[$name]}
done

say 'what is left'
left=$(testbed/on login squeue --me --noheader 2>&1)
[[ -z $left ]] || { echo "$left"; fail 'jobs of the tests are left'; }

verdicts
