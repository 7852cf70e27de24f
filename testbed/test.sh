#!/usr/bin/env bash
# test.sh: what `make test` does: format and vet, all unit tests, the build, the
# cluster, and on it every test with the build tag testbed. A test that skips
# where it is not allowed to, or that didn't run, fails. The cluster is ended
# if it wasn't there before. SLURM=22.05 picks another release. As root, on Debian.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
log=$(mktemp -d) began=$SECONDS brought_up='' failed=()
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - began)); }
fail() { failed+=("$1"); printf 'FAIL  %s\n' "$1"; }

# Ends what was started, whatever happens.
end() {
  local status=$?
  trap - EXIT INT TERM
  [[ ! $brought_up ]] || testbed/down >"$log/down" 2>&1 || status=1
  rm -rf bin/test
  if ((status)); then echo "the logs are in $log"; else rm -rf "$log"; fi
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

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

say 'format and vet'
unformatted=$(gofmt -s -l . 2>&1)
[[ -z $unformatted ]] || { echo "$unformatted"; fail 'gofmt'; }
go vet ./... || fail 'go vet'
go vet -tags testbed ./... || fail 'go vet -tags testbed'

say 'unit tests'
if ! timeout 600 go test -v -timeout 5m ./... >"$log/unit" 2>&1; then
  shown "$log/unit"
  fail 'unit tests'
fi
for test in $(skipped "$log/unit"); do fail "$test skipped"; done
echo "$(grep -acE '^\s*--- PASS' "$log/unit") passed"

# With the race detector: what has many goroutines. It needs a C compiler.
race=(. ./internal/proctree ./internal/wire ./internal/shim ./sshmux ./cmd/hpcexec)
if [[ ${RACE-1} != 0 ]] && command -v "$(go env CC)" >/dev/null; then
  say 'unit tests with the race detector'
  if ! CGO_ENABLED=1 timeout 600 go test -race -timeout 5m "${race[@]}" >"$log/race" 2>&1; then
    shown "$log/race"
    fail 'race detector'
  fi
fi

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

mkdir -p bin/test
for dir in $(grep -rlx --include='*_test.go' '//go:build testbed' . | xargs -r -n1 dirname | sort -u); do
  name=${dir#./}
  mapfile -t names < <(tests "$dir")
  ((${#names[@]})) || continue
  say "on the cluster: $name"
  pattern="^($(IFS='|'; echo "${names[*]}"))\$"
  if [[ $name == cmd/hpcexec ]]; then
    # It restarts nodes: it runs on the machine that has the cluster.
    timeout 900 go test -tags testbed -count 1 -v -timeout 14m -run "$pattern" "$dir" >"$log/on" 2>&1
  else
    binary=bin/test/${name//\//-}.test
    CGO_ENABLED=0 go test -c -tags testbed -o "$binary" "$dir" || { fail "$name doesn't compile"; continue; }
    timeout 600 testbed/on login "/opt/hpcexec/$binary" -test.v -test.timeout 9m -test.run "$pattern" >"$log/on" 2>&1
  fi
  verdict "$name" "$log/on" "${names[@]}"
done

say 'what is left'
left=$(testbed/on login squeue --me --noheader 2>&1)
[[ -z $left ]] || { echo "$left"; fail 'jobs of the tests are left'; }

if ((${#failed[@]})); then
  printf '\n%d FAILED after %d s:\n' ${#failed[@]} $((SECONDS - began))
  printf '  %s\n' "${failed[@]}"
  exit 1
fi
printf '\nall passed after %d s\n' $((SECONDS - began))
