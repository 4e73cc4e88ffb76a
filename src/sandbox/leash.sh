# Runs a command that must not outlive the process that started this shell.
#
# $1 is the signal that asks the command to end, the rest is the command. Standard input is a pipe
# whose other end that process holds open and never writes to: the kernel closes it however the
# process ends, SIGKILL included, and the guard below reads the end of file.
#
# The shell becomes the command, so number, parent and exit status are the command's own. The guard
# is orphaned at once, because Postgres takes the unexpected end of a child of its own for a crash.

polite=$1
shift
exec 3<&0 </dev/null

# Prints parent and start time of process $1 as /proc/<pid>/stat has them. The start time tells a
# process from a later one with the same number.
facts() {
  line=
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  line=${line##*) }
  # Split into fields on purpose.
  # shellcheck disable=SC2086
  set -- $line
  [ "$1" = Z ] || echo "$2 ${20}"
}

born=$(facts $$)
born=${born#* }

alive() {
  now=$(facts $$) && [ "${now#* }" = "$born" ]
}

children() {
  for process in /proc/[0-9]*; do
    parent=$(facts "${process#/proc/}") && [ "${parent%% *}" = $$ ] && echo "${process#/proc/}"
  done
}

guard() {
  trap '' HUP INT TERM QUIT
  read -r _ <&3
  if alive; then
    # The command may be paused, and a paused process does not hear the polite signal.
    # shellcheck disable=SC2046
    kill -CONT $(children) $$ 2>/dev/null
    kill "-$polite" $$ 2>/dev/null
    tries=0
    while alive && [ "$tries" -lt 20 ]; do
      sleep 0.1
      tries=$((tries + 1))
    done
  fi
  if alive; then
    # Stopped first, so that it cannot fork a child that the list misses.
    kill -STOP $$ 2>/dev/null
    # shellcheck disable=SC2046
    kill -KILL $(children) $$ 2>/dev/null
  fi
  kill -KILL 0
}

(guard &)
exec "$@" 3<&-
