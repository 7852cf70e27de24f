# A module command with the habits of real ones, for tests: messages on both
# outputs, the exit code 0 of old releases, a load that hangs.
echo "noise of the set-up"
module() {
  case $1 in
  load)
    shift
    for m; do
      case $m in
      gcc*) export PATH=/opt/gcc/bin:$PATH CC='a b
c' LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}gcc/12.1 && unset GONE ;;
      prog) export PATH=$FAKE_BIN:$PATH LOADEDMODULES=prog ;;
      breaks) export PATH=/none LD_LIBRARY_PATH=/none LOADEDMODULES=breaks/1 ;;
      loud) echo "on stdout"; echo "on stderr" >&2; export LOUD=1 LOADEDMODULES=loud/1 ;;
      hangs) sleep 60 ;;
      refuses) echo "no license" >&2; return 1 ;;
      reads) read -r x; export READ=${x:-nothing} LOADEDMODULES=reads ;;
      leaves) exit 7 ;;
      *) echo "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '$m'" >&2 ;;
      esac
    done
    ;;
  -t) printf '%s\n' '/opt/modulefiles:' 'cuda/' 'cuda/12.4(default)' 'gcc/12.1 <L>' 'openmpi/5.0(D)' 'alias@' >&2 ;;
  esac
}
