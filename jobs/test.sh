#!/usr/bin/env bash
# Sets everything up (jobs/setup.sh), then runs all tests: serial, and under mpirun with 2, 3 and 5 ranks.
# Arguments go to pytest in each part:  bash jobs/test.sh -k bits
#   FEDMPI_TEST_TIMEOUT_S   seconds each part may take before it counts as hung   (default: 1800)
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cd "$top"
limit_s=${FEDMPI_TEST_TIMEOUT_S:-1800}
verdicts=()
status=0

# part NAME COMMAND...: runs it, keeps its verdict and pytest's closing line.
part() {
  local name=$1 log code=0 verdict started=$SECONDS
  shift
  log=$(mktemp)
  echo "===== $name"
  "$@" </dev/null 2>&1 | tee "$log" || code=${PIPESTATUS[0]}
  case $code in
    0) verdict=passed ;;
    5) verdict="nothing selected" ;;
    124 | 137) verdict="FAILED (no end within $limit_s s)" ;;
    *) verdict="FAILED (exit code $code)" ;;
  esac
  # With no arguments every part has tests, so an empty one is an error.
  if [[ $verdict == FAILED* || ($code = 5 && $num_arguments = 0) ]]; then status=1; fi
  verdicts+=("$(printf '%-8s %s, %s s: %s' "$name" "$verdict" "$((SECONDS - started))" "$(closing_line "$log")")")
  rm -f "$log"
}

# Ranks close separately, so a line that tells of failures goes before one that does not.
closing_line() {
  awk '/(passed|failed|error|skipped|deselected|no tests ran).* in [0-9.]+s/ {
         gsub("=", ""); last = $0; if (/failed|error/) bad = $0
       }
       END { print bad ? bad : last }' "$1"
}

# At a terminal Ctrl-C must reach the tests; elsewhere the time limit must end their subprocesses, too.
if [ -t 0 ]; then foreground=--foreground; else foreground=; fi
limited() { timeout $foreground --kill-after=20 "$limit_s" "$@"; }
limited_ranks() { limited mpirun -n "$@"; }

num_arguments=$#
tests=(python -m pytest --color=no --durations=10) # no colours: mpirun looks like a terminal
ranks_environment 5 # for serial tests, too: some start mpirun themselves
# Serial tests do not know each other, so they share the cores.
part serial limited "${tests[@]}" -n auto --maxprocesses 8 --dist worksteal -m "not mpi" --ignore tests/slurm "$@"
# Each of these starts a cluster and needs the cores for itself.
part Slurm limited "${tests[@]}" tests/slurm "$@"
for num_ranks in 2 3 5; do
  part "$num_ranks ranks" limited_ranks "$num_ranks" "${tests[@]}" --with-mpi -m mpi tests/mpi "$@"
done

echo "===== tests of fedmpi, $SECONDS s in all"
printf '%s\n' "${verdicts[@]}"
exit $status
