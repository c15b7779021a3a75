#!/usr/bin/env bash
# Runs a command that runs tests, and ends it as hung, with exit code 124, when for SILENCE_S seconds no test
# has started or finished (tests/progress.py shows it). Nothing that the command has started outlives it.
#
#   bash jobs/end_if_hung.sh SILENCE_S COMMAND...
set -uo pipefail

silence_s=$1
shift
folder=$(mktemp -d)
progress=$folder/running seen=$folder/seen hung=$folder/hung
mkdir "$progress"

# The variable marks them, daemons and those in sessions of their own included.
started() { grep -lszxF "FEDMPI_TEST_PROGRESS=$progress" /proc/[0-9]*/environ | cut -d/ -f3; }

end_all() {
  local signal=TERM second pids
  for second in {1..20}; do
    pids=$(started)
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086  # several numbers in one variable
    kill -$signal $pids 2>/dev/null
    sleep 1
    if [ "$second" = 5 ]; then signal=KILL; fi
  done
}

# Counts its own seconds: those of a suspended machine, or of a clock that jumps, are none.
watch() {
  local silent_s=0
  echo >"$seen"
  while ((silent_s++ < silence_s)); do
    sleep 1
    if [[ $progress -nt $seen ]]; then silent_s=0; echo >"$seen"; fi
  done
  sort -u "$progress"/* >"$hung" 2>/dev/null
  kill -INT $(started) # pytest then says what has failed so far
  sleep $((silence_s < 30 ? silence_s : 30))
  end_all
}

finish() {
  { kill "$watcher"; wait "$watcher"; } 2>/dev/null
  end_all
  rm -rf "$folder"
}

watch >/dev/null 2>&1 </dev/null &
watcher=$!
trap finish EXIT
FEDMPI_TEST_PROGRESS=$progress "$@"
code=$?
if [ -e "$hung" ]; then
  code=124
  running=$(paste -sd, "$hung")
  echo "hung: no test has finished for $silence_s s; ended in ${running:-no test}" >&2
fi
exit $code
