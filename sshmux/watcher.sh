# The watcher of a connection. It reads orders from stdin, and when that ends,
# because the connection has, it ends every command that is still registered.
#
#   + ID GROUP LIMIT   a command: its mark, its process group, its time in
#                      seconds (0: none)
#   - ID               it has ended
#   k ID GROUP TTY     end it: answer "d ID N", N processes are left
#   s GROUP SIGNAL     signal it
trap '' HUP INT PIPE
unset hpcexec_x
if test -r /proc/self/stat; then proc=1; else proc=; fi

nap() { sleep 0.1 2>/dev/null || sleep 1; }

# ingroup GROUP: /proc/PID/stat of its processes that are no zombies.
ingroup() {
  test "$1" -gt 0 || return 0
  if test "$proc"; then
    grep -lE "^[0-9]+ \(.*\) [^ZX] [0-9]+ $1 " /proc/[0-9]*/stat 2>/dev/null
  else
    kill -0 "-$1" 2>/dev/null && echo "/proc/-$1/stat"
  fi
}

# marked ID: /proc/PID/environ of the processes that carry the mark.
marked() {
  test "$proc" && grep -lF "$var=$1" /proc/[0-9]*/environ 2>/dev/null
}

# end ID GROUP TTY: TERM to the group, and after the grace time KILL to all.
end() {
  if test "$2" -gt 0; then
    test "$3" = 1 && kill -HUP "-$2" 2>/dev/null
    kill -TERM "-$2" 2>/dev/null
    kill -CONT "-$2" 2>/dev/null
    i=0
    while test $i -lt "$grace" && test "$(ingroup "$2")"; do nap; i=$((i + 1)); done
  fi
  i=0
  none=0
  while :; do
    all="$(ingroup "$2") $(marked "$1")"
    set -- "$1" "$2" $all
    n=$(($# - 2))
    if test $n -eq 0; then
      # Once more: a process in the middle of an exec shows no environment.
      none=$((none + 1))
      test $none -lt 2 || break
      continue
    fi
    none=0
    test $i -lt 30 || break
    test "$2" -gt 0 && kill -KILL "-$2" 2>/dev/null
    for f in $all; do f=${f#/proc/}; kill -KILL "${f%/*}" 2>/dev/null; done
    nap
    i=$((i + 1))
  done
  echo "d $1 $n"
}

# forget ID: takes it out of the list, and its timer with it.
forget() {
  rest=
  for e in $list; do
    case $e in
      "$1":*) t=${e##*:}; test "$t" = 0 || kill "$t" 2>/dev/null ;;
      *) rest="$rest $e" ;;
    esac
  done
  list=$rest
}

list=
echo hpcexec-watcher-ready
while IFS= read -r order; do
  set -- $order
  case $1 in
    +)
      forget "$2"
      timer=0
      if test "${4:-0}" -gt 0; then
        (
          sleep "$4" & s=$!
          trap 'kill $s 2>/dev/null; exit' TERM
          wait $s
          end "$2" "$3" 0
        ) </dev/null & timer=$!
      fi
      list="$list $2:$3:$timer"
      ;;
    -) forget "$2" ;;
    k) (end "$2" "$3" "$4") </dev/null & ;;
    s) kill -s "$3" -- "-$2" 2>/dev/null || kill -s "$3" "-$2" 2>/dev/null ;;
  esac
done
for e in $list; do
  t=${e##*:}
  test "$t" = 0 || kill "$t" 2>/dev/null
  g=${e#*:}
  (end "${e%%:*}" "${g%%:*}" 1) >/dev/null </dev/null &
done
wait
