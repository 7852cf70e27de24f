#!/usr/bin/env bash
# demo.sh: what `make demo` does: builds hpcexec, brings the cluster up and shows
# the main job at work, as ada on the login node. Each step is checked; the
# summary at the end says what held. The cluster stays up.
# shellcheck disable=SC2016,SC2317,SC2001 # what is quoted is for the shells further on; check calls its functions
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
image=/scratch/images/base.sif
bold='' plain=''
[[ -t 1 ]] && bold=$(tput bold 2>/dev/null) plain=$(tput sgr0 2>/dev/null)
held=() broke=()

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

# quoted WORD…: the words as one would type them.
quoted() {
  local word line=''
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:@%+=-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    line+=" $word"
  done
  printf '%s' "$line"
}

# ada COMMAND…: shows a command and runs it as ada on login. Its output is in
# $out, its exit code in $code and how long it took in $ms.
ada() {
  printf 'ada@login $%s\n' "$(quoted "$@")"
  local from=${EPOCHREALTIME/[.,]/}
  out=$(timeout 120 testbed/on login "$@" 2>&1)
  code=$?
  ms=$(((${EPOCHREALTIME/[.,]/} - from) / 1000))
  [[ $out ]] && sed 's/^/    /' <<<"$out"
  printf '    (exit code %d, %d ms)\n' "$code" "$ms"
}

# check TEXT CONDITION…: notes whether what the text says is true.
check() {
  local text=$1
  shift
  if "$@"; then
    held+=("$text")
  else
    broke+=("$text")
    printf '    this should not be: %s\n' "$text"
  fi
}
has() { [[ $out == *"$1"* ]]; }
lacks() { [[ $out != *"$1"* ]]; }
is() { (($1)); }
nothing_runs() { [[ -z $(testbed/on "$1" pgrep -xf "$2") ]]; }

title '1. Build hpcexec and bring up the cluster (Slurm, Apptainer, sshd on four nodes)'
make -s build || exit 1
testbed/up || exit 1
snapshot=none
clean() {
  testbed/on login sh -c 'hpcexec session rm --yes demo2; hpcexec session rm --yes demo; hpcexec snapshot rm --yes "$1"' \
    sh "$snapshot" >/dev/null 2>&1
}
clean
trap clean EXIT

title '2. What works here, and what GPUs there are'
ada hpcexec doctor
check 'doctor finds nothing wrong that is needed' is $((code == 0))
ada hpcexec gpus
check 'the GPUs of both types are listed' eval 'has a100 && has h100'

title '3. One command: a job on a GPU node, a container in it, a program in that'
ada hpcexec exec -s demo --on slurm --gpus a100:1 --image "$image" -- \
  sh -c 'echo "GPU $CUDA_VISIBLE_DEVICES on $(hostname)"; echo "written in the first job" >> /notes'
check 'the program ran on gpu1 with a GPU' has 'GPU 0 on gpu1'
check 'from nothing in 6 s' is $((code == 0 && ms <= 6000))
ada squeue --me --format '%i %j %P %T %R'
check 'in a job of ada'"'"'s' has RUNNING

title '4. The same session again: no job to wait for, no container to start'
ada hpcexec exec -s demo -- cat /notes
check 'the second command without a wait' is $((code == 0 && ms <= 500))
ada hpcexec exec -s demo -- sh -c 'exit 42'
check 'the exit code is the command'"'"'s' is $((code == 42))
ada hpcexec exec -s demo --timeout 1s -- sleep 4242
check 'a time-out is exit code 124' is $((code == 124))
check 'and leaves nothing on the node' nothing_runs gpu1 'sleep 4242'

title '5. A snapshot, and a second session that starts from it'
ada hpcexec snapshot create demo --note 'after the first job'
snapshot=${out##*$'\n'}
ada hpcexec snapshot fork "$snapshot" demo2
ada hpcexec exec -s demo2 -- sh -c 'echo "written in the fork" >> /notes; cat /notes'
check 'the fork has the files' has 'written in the first job'
ada hpcexec exec -s demo -- cat /notes
check 'and the first session has nothing of the fork' lacks 'written in the fork'

title '6. The job is cancelled behind its back; the next command has a new one'
job=$(testbed/on login sh -c "hpcexec session show demo --json | sed 's/.*\"job_id\":\"\([0-9]*\)\".*/\1/'")
ada scancel "$job"
ada hpcexec exec -s demo -- sh -c 'cat /notes; echo "job $SLURM_JOB_ID"'
check 'a new allocation, the old files' eval 'has "written in the first job" && lacks "job $job"'

title '7. The client is killed: nothing of its command is left'
ada sh -c 'hpcexec exec -s demo -- sleep 4343 & sleep 1; kill -9 $!; sleep 5'
check 'the command of a killed client is gone' nothing_runs gpu1 'sleep 4343'

title '8. Stop: the allocation is given back, the files stay'
ada hpcexec session stop demo demo2
ada squeue --me --noheader
check 'no job is left' is $((${#out} == 0))
ada hpcexec exec -s demo -- cat /notes
check 'the files are there tomorrow' has 'written in the first job'

title '9. An error says what to do'
ada hpcexec exec --on slurm --gpus h100:16 -- true
check 'an error is exit code 125 and says what there is' eval '((code == 125)) && has "h100"'

title Summary
printf 'ok      %s\n' "${held[@]}"
((${#broke[@]})) && printf 'FAILED  %s\n' "${broke[@]}"
printf '\nThe cluster is still up: testbed/on login hpcexec …   (make cluster-down ends it)\n'
exit $((${#broke[@]} > 0))
