#!/usr/bin/env bash
# Sets everything up (jobs/setup.sh), then checks the style and runs the fast tests: serial, on a Slurm where one is
# installed, and under mpirun with 3 ranks. tests/README.md says more.
#   bash jobs/test.sh --all    the long versions of the tests, too, and 2 and 5 ranks
# Arguments go to pytest in each part:  bash jobs/test.sh -k bits
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cd "$top"
verdicts=()
status=0

# part NAME COMMAND...: runs it, keeps its verdict and pytest's closing line.
part() {
  local name=$1 log code=0 verdict started=$SECONDS
  shift
  log=$(mktemp)
  echo "===== $name"
  # pytest-timeout ends a test that hangs; this ends a part that hangs outside of tests.
  timeout --kill-after=60 3600 "$@" </dev/null 2>&1 | tee --ignore-interrupts "$log" || code=${PIPESTATUS[0]}
  case $code in
    0) verdict=passed ;;
    5) verdict="nothing selected" ;;
    *) verdict="FAILED (exit code $code)" ;;
  esac
  # Without a choice of tests every part has some, so an empty one is an error.
  if [[ $verdict == FAILED* || ($code = 5 && $has_all = yes) ]]; then status=1; fi
  verdicts+=("$(printf '%-11s %s, %s s: %s' "$name" "$verdict" "$((SECONDS - started))" "$(closing_line "$log")")")
  rm -f "$log"
}

# Ranks close separately, so a line that tells of failures goes before one that does not.
closing_line() {
  awk '/(passed|failed|error|skipped|deselected|no tests ran).* in [0-9.]+s/ {
         gsub("=", ""); last = $0; if (/failed|error/) bad = $0
       }
       END { print bad ? bad : last ? last : $0 }' "$1"
}

trap 'rm -f "${log:-}"; exit 130' INT # after Ctrl-C pytest still says what has failed; then no further part begins
case "$*" in "" | --all) has_all=yes ;; *) has_all=no ;; esac
tests=(python -m pytest --color=no --durations=10) # no colours: mpirun looks like a terminal
FEDMPI_TEST_REFERENCES=$(mktemp -d) # what one process has computed, for 2, 3 and 5 ranks
export FEDMPI_TEST_REFERENCES
trap 'rm -rf "$FEDMPI_TEST_REFERENCES"' EXIT
ranks_environment 5 # for serial tests, too: some start mpirun themselves
part "ruff check" ruff check
part "ruff format" ruff format --check
part mypy python -m mypy
part imports lint-imports --cache-dir .pytest_cache/import_linter --no-logo
# Serial tests do not know each other, so they share the cores.
part serial "${tests[@]}" -n auto --maxprocesses 8 --dist worksteal -m "not mpi" --ignore tests/slurm "$@"
# Each of these starts a cluster and needs the cores for itself.
part Slurm "${tests[@]}" tests/slurm "$@"
# On 3 ranks all methods; with --all on 2 and 5 ranks what the fast run has on 3.
part "3 ranks" mpirun -n 3 "${tests[@]}" --with-mpi -m mpi tests/mpi "$@"
if [[ " $* " == *" --all "* ]]; then
  words=()
  for word in "$@"; do [ "$word" = --all ] || words+=("$word"); done
  for num_ranks in 2 5; do
    part "$num_ranks ranks" mpirun -n "$num_ranks" "${tests[@]}" --with-mpi -m mpi tests/mpi "${words[@]}"
  done
fi

echo "===== tests of fedmpi, $SECONDS s in all"
printf '%s\n' "${verdicts[@]}"
exit $status
