package slurm

import (
	"strings"

	"github.com/hpcexec/hpcexec"
	"github.com/hpcexec/hpcexec/internal/shell"
)

// The scripts of a command that runs as a step of an allocation.
//
//	login node                            │ compute node
//	sh launch ─▶ srun ────────────────────┼─▶ slurmstepd ─▶ sh step ─▶ command
//	   │   stdout ◀───────────────────────┼──────── its stdout, then a mark
//	   │   stderr ◀── cat ◀── fd 3 ◀──────┼──────── a mark, its stderr, then a mark
//	   │                                  │           │
//	   └ after all: a mark, srun's exit   │           └ sh watcher: kills what is
//	     code, and what srun itself said  │             left when "sh step" dies
//
// srun's exit code can't tell a lost node from a program that ends with 0, and
// srun mixes its own lines into stderr. So the command's output is kept apart
// with --error, the script on the node reports the exit code itself, and a
// missing report is a lost step. The marks are two control bytes, a word that
// only this run knows, and a line; the control bytes come of printf, so that no
// ps or env on the node can print a mark by accident.
//
// The scripts are for any POSIX sh. They use sed, grep, cat, sleep, and setsid
// where there is one. Their variables are named hpcexec_*, for the command's
// own are in the same shell for a moment.

// envPrefix marks the variables of the command on their way: srun would take
// SLURM_* and the like for its own.
const envPrefix = "HPCEXEC_E_"

// stepVar has the run's word in the environment of the command and all that
// come of it: so its processes are found wherever they went.
const stepVar = "HPCEXEC_STEP"

const markBytes = "\x1e\x1d"

// launchStepScript runs srun on the login node. $1: variables to keep, $2: the
// word, $3: "tty" or empty. The pipe to cat is one of this user's: srun opens
// /dev/fd/3 anew, which fails on a socket and on a pipe of sshd's.
const launchStepScript = scrub + `hpcexec_word=$2 hpcexec_tty=$3
shift 3
hpcexec_run() {
  printf '\036\035%s srun %s\n%s\n' "$hpcexec_word" "$1" "$2"
}
exec 5>&1
if [ -n "$hpcexec_tty" ]; then
  hpcexec_log=$("$@" 2>&1 >&5 5>&-)
  hpcexec_run "$?" "$hpcexec_log" >&2
  exit 0
fi
{
  hpcexec_log=$("$@" 2>&1 >&5 3>&6 5>&- 6>&-)
  hpcexec_run "$?" "$hpcexec_log" >&6
} 6>&1 | cat >&2 5>&-
`

// treeScript has functions that find the command's processes by stepVar. A
// process that has ended but wasn't reaped has no environment and isn't found.
const treeScript = `hpcexec_tree() { grep -l "` + stepVar + `=$hpcexec_word" /proc/[0-9]*/environ 2>/dev/null; }
hpcexec_nap() { sleep 0.05 2>/dev/null || sleep 1; }
hpcexec_kill() {
  for hpcexec_p in $(hpcexec_tree); do
    hpcexec_p=${hpcexec_p#/proc/}
    kill "-$1" "${hpcexec_p%/environ}" 2>/dev/null || :
  done
}
hpcexec_killall() {
  hpcexec_i=0
  while [ "$hpcexec_i" -lt 100 ] && [ -n "$(hpcexec_tree)" ]; do
    hpcexec_kill KILL
    hpcexec_nap
    hpcexec_i=$((hpcexec_i + 1))
  done
}
hpcexec_end() {
  hpcexec_kill TERM
  hpcexec_i=0
  while [ "$hpcexec_i" -lt "$1" ] && [ -n "$(hpcexec_tree)" ]; do
    hpcexec_nap
    hpcexec_i=$((hpcexec_i + 1))
  done
  hpcexec_killall
}
`

// watchScript runs in a session of its own and outlives the step where that
// ends by force: it reads until "sh step" is gone, and where that died without
// a last word it kills what is left of the command. $1: the word.
const watchScript = `hpcexec_word=$1
` + treeScript + `while IFS= read -r hpcexec_line; do
  if [ "$hpcexec_line" = done ]; then exit 0; fi
done
hpcexec_killall
hpcexec_nap
hpcexec_killall
`

// signalScript is a step of its own. $1: the word, $2: a signal, or END for
// TERM and then KILL after $3 naps of 0.05 s.
const signalScript = `hpcexec_word=$1
` + treeScript + `if [ "$2" = END ]; then hpcexec_end "$3"; else hpcexec_kill "$2"; fi
[ "$2" != END ] || [ -z "$(hpcexec_tree)" ]
`

// stepScript runs the command on the node. $1: the word, $2: the directory or
// empty, $3: the time-out for sleep or 0, $4: naps between TERM and KILL,
// $5: "merge" where both outputs are one, $6: the run's id, $7: letters: "x"
// where each argument has an x before it (srun takes a ":" for the beginning of
// another component), "e" where variables come before the command; then the
// argv.
// RESTORE stands for the lines that set the command's variables.
//
// stepVar is set here and not carried: the shell's own environment must not
// have it, else the shell would be taken for a part of the command.
//
// slurmstepd starts tasks with the stop signals blocked, for which sh has no
// words; env has since coreutils 8.31.
//
// The shell's own stderr is closed against "Killed" and "Terminated" that
// shells write when a command dies of a signal. TERM and the like are caught,
// so that the end of a command that gets them with the whole step is still
// told; a subshell has its own dispositions again.
const stepScript = `hpcexec_word=$1 hpcexec_dir=$2 hpcexec_time=$3 hpcexec_grace=$4 hpcexec_merge=$5 hpcexec_id=$6 hpcexec_form=$7
shift 7
case $hpcexec_form in *x*) for hpcexec_a do shift; set -- "$@" "${hpcexec_a#x}"; done ;; esac
` + treeScript + `trap : HUP INT QUIT PIPE TERM USR1 USR2
exec 5>&1
if [ -n "$hpcexec_merge" ]; then exec 6>&1; else exec 6>&2; fi
exec 2>/dev/null
if [ -z "$hpcexec_dir" ]; then
  cd "$HOME" || cd /
elif ! cd "$hpcexec_dir"; then
  if [ -d "$hpcexec_dir" ]; then hpcexec_dir=denied; else hpcexec_dir=missing; fi
  printf '\036\035%s dir %s\n' "$hpcexec_word" "$hpcexec_dir" >&6
  printf '\036\035%s out\n' "$hpcexec_word" >&5
  exit 0
fi
hpcexec_env=$(command -v env)
if env --default-signal=TSTP,TTIN,TTOU true; then hpcexec_stop=--default-signal=TSTP,TTIN,TTOU; else hpcexec_stop=; fi
case $hpcexec_form$1 in
e* | xe*) set -- "$hpcexec_env" $hpcexec_stop -- "$@" ;;
*=*) ;;
*) if [ -n "$hpcexec_stop" ]; then set -- "$hpcexec_env" "$hpcexec_stop" -- "$@"; fi ;;
esac
hpcexec_setsid=
if command -v setsid >/dev/null; then hpcexec_setsid=setsid; fi
{
  trap : HUP INT QUIT PIPE TERM USR1 USR2
  exec 7>&1 >&5
  printf '\036\035%s start %s %s\n' "$hpcexec_word" "${SLURM_STEP_ID-}" "${SLURMD_NODENAME-}" >&6
  hpcexec_timer=
  if [ "$hpcexec_time" != 0 ]; then
    (
      exec </dev/null >/dev/null 5>&- 6>&- 7>&-
      sleep "$hpcexec_time" &
      hpcexec_sleep=$!
      trap 'kill "$hpcexec_sleep"; exit 0' TERM
      wait "$hpcexec_sleep" || { sleep $((${hpcexec_time%.*} + 1)) & hpcexec_sleep=$!; wait "$hpcexec_sleep"; }
      trap '' TERM
      hpcexec_end "$hpcexec_grace"
      exit 9
    ) &
    hpcexec_timer=$!
  fi
  (
RESTORE
    HPCEXEC_ID=$hpcexec_id ` + stepVar + `=$hpcexec_word
    export HPCEXEC_ID ` + stepVar + `
    exec "$@" 2>&6 5>&- 6>&- 7>&-
  )
  hpcexec_code=$? hpcexec_over=
  if [ -n "$hpcexec_timer" ]; then
    kill -TERM "$hpcexec_timer"
    wait "$hpcexec_timer"
    if [ "$?" = 9 ]; then hpcexec_over=timeout; fi
  fi
  printf '\036\035%s end %s %s\n' "$hpcexec_word" "$hpcexec_code" "$hpcexec_over" >&6
  printf '\036\035%s out\n' "$hpcexec_word" >&5
  echo done >&7
} | (
  exec 8<&0 </dev/null >/dev/null 5>&- 6>&-
  $hpcexec_setsid /bin/sh -c WATCH hpcexec "$hpcexec_word" <&8 8<&- &
)
`

// awkward are variables that a shell keeps for itself, or that change what it
// does: they are set by env, which shows their values to ps for a moment.
var awkward = map[string]bool{
	"UID": true, "EUID": true, "PPID": true, "SHELLOPTS": true, "BASHOPTS": true, "BASH_VERSINFO": true, "BASHPID": true,
	"OPTIND": true, "OPTARG": true, "LINENO": true, "RANDOM": true, "SRANDOM": true, "SECONDS": true, "EPOCHSECONDS": true,
	"EPOCHREALTIME": true, "DIRSTACK": true, "GROUPS": true, "FUNCNAME": true, "HISTCMD": true, "BASH_COMMAND": true,
	"BASH_SUBSHELL": true, "BASH_ARGV": true, "BASH_ARGC": true, "BASH_LINENO": true, "BASH_SOURCE": true, "BASH_ARGV0": true,
	"PIPESTATUS": true, "POSIXLY_CORRECT": true, "IFS": true, "PWD": true, "OLDPWD": true, "PS4": true, "_": true,
	"BASH_XTRACEFD": true, "COMP_WORDBREAKS": true, "HOSTNAME": true, "SHLVL": true, "ENV": true, "BASH_ENV": true,
}

// restore gives the lines for the place RESTORE, the entries that carry the
// variables there, and the beginning of the command's argv.
func restore(env, secrets []string) (lines string, carried, carriedSecret, argv []string, err error) {
	var b strings.Builder
	secret := map[string]bool{}
	for _, e := range secrets {
		name, _, _ := strings.Cut(e, "=")
		secret[name] = true
	}
	for _, e := range hpcexec.MergeEnv(env, secrets) {
		name, value, _ := strings.Cut(e, "=")
		if awkward[name] {
			if secret[name] {
				return "", nil, nil, nil, hpcexec.Errorf(hpcexec.ErrInvalid, "%s can't be a secret of a command in a Slurm step: shells keep that name for themselves", name)
			}
			argv = append(argv, name+"="+value)
			continue
		}
		b.WriteString("    " + name + "=$" + envPrefix + name + "; export " + name + "; unset " + envPrefix + name + "\n")
		if secret[name] {
			carriedSecret = append(carriedSecret, envPrefix+e)
		} else {
			carried = append(carried, envPrefix+e)
		}
	}
	return b.String(), carried, carriedSecret, argv, nil
}

// buildStepScript puts the script together.
func buildStepScript(restoreLines string) string {
	s := strings.Replace(stepScript, "WATCH", shell.Quote(watchScript), 1)
	return strings.Replace(s, "RESTORE\n", restoreLines, 1)
}
