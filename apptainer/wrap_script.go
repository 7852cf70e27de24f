package apptainer

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hpcexec/hpcexec"
)

// enterScript stands before each command: sh -c enterScript hpcexec NONCE
// CARRIED DIR ENCODED JOBSCRIPT COMMAND…
//
// It takes over variables that couldn't come under their own names, goes to
// the directory, says so on standard error, and becomes the command. Its own
// variables aren't exported, and begin with hx_ so that they don't change one
// that is. Everything in it is built into dash, bash and busybox.
//
// On a terminal the command gets a process group of its own, in the terminal's
// foreground, by the job control of a second shell: the interrupt key is for
// the foreground, and the runtime's process, which is in the command's group
// otherwise, would die of it and take the command along. That shell wakes a
// command which the suspend key has stopped (nobody else could) and tells how
// it ended. Its own exit code isn't good for that: dash fails at its end to
// give the terminal back to a group that is outside of the container.
const enterScript = `hx_m=$1 hx_e=$2 hx_d=$3 hx_a=$4 hx_j=$5
shift 5
for hx_n in $hx_e; do
  eval "hx_v=\$(printf %bx \"\$HPCEXEC_E_$hx_n\")"
  unset "HPCEXEC_E_$hx_n"
  export "$hx_n=${hx_v%x}"
done
if [ -n "$hx_a" ]; then
  hx_v=$(printf %bx "$hx_d")
  hx_d=${hx_v%x}
  hx_n=$#
  while [ "$hx_n" -gt 0 ]; do
    hx_v=$(printf %bx "$1")
    shift
    set -- "$@" "${hx_v%x}"
    hx_n=$((hx_n - 1))
  done
fi
if [ -z "$hx_d" ]; then
  cd 2>/dev/null || cd /
elif ! cd -- "$hx_d" 2>/dev/null; then
  hx_v="no such file or directory"
  if [ -d "$hx_d" ]; then hx_v="permission denied"; elif [ -e "$hx_d" ]; then hx_v="not a directory"; fi
  printf "%s dir %s\n" "$hx_m" "$hx_v" >&2
  exit 125
fi
unset OLDPWD
if [ -n "$hx_j" ]; then
  hx_v=$(exec 8>&2 && /bin/sh -c "$hx_j" hpcexec "$hx_m" "$@" 9>&1 >&8 8>&-)
  if [ -n "$hx_v" ]; then
    if [ "$hx_v" -gt 128 ]; then
      ulimit -c 0
      kill -"$((hx_v - 128))" "$$"
    fi
    exit "$hx_v"
  fi
fi
printf "%s run %s\n" "$hx_m" "$$" >&2
case $1 in
-*) exec -- "$@" ;;
esac
exec "$@"
`

// jobScript is the second shell: sh -c jobScript hpcexec NONCE COMMAND…, with
// the terminal on 0 to 2, and 9 for the answer. Where it can't control jobs it
// gives none.
const jobScript = `hx_m=$1
shift
exec 8>&2 2>/dev/null
set -m || exit
(
  read -r hx_v hx_n </proc/self/stat
  exec 2>&8 8>&- 9>&-
  printf "%s run %s\n" "$hx_m" "$hx_v" >&2
  case $1 in
  -*) exec -- "$@" ;;
  esac
  exec "$@"
)
hx_v=$?
while :; do
  case $hx_v in
  14[789] | 150) jobs %% >/dev/null || break ;;
  *) break ;;
  esac
  fg >/dev/null
  hx_v=$?
done
echo "$hx_v" >&9
`

// signalScript signals a command from inside its container: sh -c signalScript
// hpcexec SIGNALS PID RUN group|tree PAUSES.
//
// "group" signals the command's process group, which has no number in here, its
// leader being outside: it is those of the command's tree that are in the same
// group as the command. "tree" ends the whole tree: it gets the signals, the
// PAUSES to end in, such as "0.05 0.1 0.2", and SIGKILL until none is left.
//
// The tree is the command, whoever has its HPCEXEC_RUN in the environment, and
// all their descendants. Its members are kept as PID:START, so that a pid which
// another process has got meanwhile isn't hit. Without cat or a grep that takes
// NUL for a line's end the shell reads the files itself, byte by byte; that
// reading drops the NULs of environ doesn't matter.
const signalScript = `sigs=$1 pid=$2 run=$3 mode=$4 pauses=$5 tree= grep= nl="
"
if printf "a\0b\0" | grep -qzxF b 2>/dev/null; then grep=1; fi
marked() {
  if [ -n "$grep" ]; then
    grep -lzxF "HPCEXEC_RUN=$run" /proc/[0-9]*/environ 2>/dev/null
    return
  fi
  for d in /proc/[0-9]*; do
    while read -r line || [ -n "$line" ]; do
      case $line in *"HPCEXEC_RUN=$run"*) echo "$d/environ" && break ;; esac
    done 2>/dev/null <"$d/environ"
  done
}
stats() {
  if command -v cat >/dev/null; then
    cat /proc/[0-9]*/stat 2>/dev/null
    return
  fi
  for d in /proc/[0-9]*; do
    read -r line 2>/dev/null <"$d/stat" && echo "$line"
  done
}
alive() {
  set +f
  marks=$nl$(marked)$nl all=$(stats)
  set -f
  more=1
  while [ -n "$more" ]; do
    more= live= groups= want=
    IFS=$nl
    for line in $all; do
      IFS=" "
      p=${line%% *}
      set -- ${line##*") "}
      [ "$p" != "$$" ] && [ "$1" != Z ] || continue
      id=$p:${20}
      case " $tree " in
      *" $id "*) ;;
      *)
        case "$p $tree $marks" in
        "$pid "* | *" $2:"* | *"$nl/proc/$p/environ$nl"*) tree="$tree $id" more=1 ;;
        *) continue ;;
        esac
        ;;
      esac
      live="$live $p" groups="$groups $p:$3"
      if [ "$p" = "$pid" ]; then want=$3; fi
    done
    IFS=" "
  done
  [ -n "$live" ]
}
if [ "$mode" = group ]; then
  hit=
  alive && [ -n "$want" ] || exit 3
  for p in $groups; do
    if [ "${p#*:}" = "$want" ]; then
      kill -s "$sigs" "${p%:*}" 2>/dev/null && hit=1
    fi
  done
  [ -n "$hit" ] || exit 3
  exit 0
fi
alive || exit 0
pid=- # from now on it is in the tree, or has ended
for sig in $sigs; do
  kill -s "$sig" $live 2>/dev/null
done
for p in $pauses; do
  sleep "$p" 2>/dev/null || sleep 1
  alive || exit 0
done
rounds=100
while alive; do
  kill -s KILL $live 2>/dev/null
  rounds=$((rounds - 1))
  [ "$rounds" -gt 0 ] || exit 4
  sleep 0.02 2>/dev/null || sleep 1
done
exit 0
`

// Exit codes of signalScript.
const (
	signalNobody    = 3 // the command has ended
	signalSurvivors = 4
)

// aliveScript shows /proc/PID/stat, on the node.
const aliveScript = `read -r st 2>/dev/null </proc/"$1"/stat || exit 1
printf "%s\n" "$st"
`

// noncePrefix begins what the script says, the rest is random and names the
// run in its environment. HPCEXEC_ID isn't good for that: it is the caller's,
// and one may begin with another.
const noncePrefix = "hpcexec:"

// An entry is how a command enters the container.
type entry struct {
	argv         []string // after instance://NAME
	env, secrets []string // to be prefixed
}

// carriedNames can't be set by a prefix variable under their own names: the
// runtime overrides HOME, appends to LD_LIBRARY_PATH, looks the command up in
// PATH, and takes the last two for instructions. They travel as HPCEXEC_E_NAME.
var carriedNames = map[string]bool{
	"HOME": true, "LD_LIBRARY_PATH": true, "PATH": true, "PREPEND_PATH": true, "APPEND_PATH": true,
}

// enter makes the call of enterScript for a request. Values and arguments that
// aren't UTF-8 are encoded: the runtime passes all as JSON.
func enter(nonce string, req hpcexec.Request) entry {
	var e entry
	var carried []string
	last := map[string]int{} // a name in both lists is one of Secrets
	for i, s := range req.Secrets {
		name, _, _ := strings.Cut(s, "=")
		last[name] = i
	}
	add := func(list []string, s string) []string {
		name, value, _ := strings.Cut(s, "=")
		if carriedNames[name] || !utf8.ValidString(value) {
			carried = append(carried, name)
			s = "HPCEXEC_E_" + name + "=" + octal(value)
		}
		return append(list, s)
	}
	for _, s := range hpcexec.MergeEnv(req.Env, []string{"HPCEXEC_ID=" + req.ID, "HPCEXEC_RUN=" + strings.TrimPrefix(nonce, noncePrefix)}) {
		name, _, _ := strings.Cut(s, "=")
		if _, ok := last[name]; !ok {
			e.env = add(e.env, s)
		}
	}
	for _, s := range hpcexec.MergeEnv(req.Secrets) {
		e.secrets = add(e.secrets, s)
	}

	args, encoded, job := req.Args, "", ""
	if req.TTY != nil {
		job = jobScript
	}
	dir := req.Dir
	for _, a := range append([]string{dir}, req.Args...) {
		if !utf8.ValidString(a) {
			encoded = "encoded"
		}
	}
	if encoded != "" {
		dir = octal(dir)
		args = make([]string, len(req.Args))
		for i, a := range req.Args {
			args[i] = octal(a)
		}
	}
	e.argv = append([]string{"/bin/sh", "-c", enterScript, "hpcexec", nonce, strings.Join(carried, " "), dir, encoded, job}, args...)
	return e
}

// octal writes a string so that printf %b gives it back, in ASCII.
func octal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '/' || c == '.' || c == ':' || c == '-' || c == '_' ||
			'0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' {
			b.WriteByte(c)
			continue
		}
		b.WriteString(`\0`)
		b.WriteByte('0' + c>>6)
		b.WriteByte('0' + c>>3&7)
		b.WriteByte('0' + c&7)
	}
	return b.String()
}

// filterState says how far a command has come.
type filterState int

const (
	stateNone  filterState = iota // the script hasn't said anything
	stateRun                      // the command was run
	stateNoDir                    // its directory isn't there
)

// A filter passes on what comes after the script's message, and keeps what
// came before: that is the runtime's.
type filter struct {
	to    io.Writer // nil discards
	nonce []byte
	seen  chan struct{} // closed when the message has come

	mu    sync.Mutex
	head  []byte // what came before the message, or the whole so far
	state filterState
	text  string // reason of stateNoDir
	inPID int    // of the command, in the container
}

// maxHead bounds what is kept of a runtime that never comes to the script.
const maxHead = 64 << 10

func newFilter(nonce string) *filter {
	return &filter{nonce: []byte(nonce), seen: make(chan struct{})}
}

func (f *filter) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != stateNone {
		return f.pass(p)
	}
	f.head = append(f.head, p...)
	at := bytes.Index(f.head, f.nonce)
	if at < 0 {
		if extra := len(f.head) - maxHead; extra > 0 {
			// The first FATAL line is what counts, and the nonce may be in
			// two pieces: the middle goes.
			f.head = append(f.head[:maxHead/2], f.head[len(f.head)-maxHead/2:]...)
		}
		return len(p), nil
	}
	end := bytes.IndexByte(f.head[at:], '\n')
	if end < 0 {
		return len(p), nil
	}
	line := string(bytes.TrimSpace(f.head[at+len(f.nonce) : at+end]))
	rest := f.head[at+end+1:]
	f.head = f.head[:at:at]
	word, value, _ := strings.Cut(line, " ")
	f.state = stateRun
	if word == "dir" {
		f.state, f.text = stateNoDir, value
	} else {
		f.inPID, _ = strconv.Atoi(value)
	}
	close(f.seen)
	if len(rest) > 0 {
		if _, err := f.pass(rest); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (f *filter) pass(p []byte) (int, error) {
	if f.to == nil {
		return len(p), nil
	}
	return f.to.Write(p)
}

// pid is the command's pid in the container, or 0 where it doesn't run yet.
func (f *filter) pid() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inPID
}

// result says how far the command came; the text is the reason of a missing
// directory, or what the runtime said.
func (f *filter) result() (filterState, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == stateNone {
		return stateNone, string(f.head)
	}
	return f.state, f.text
}
