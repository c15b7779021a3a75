#!/usr/bin/env bash
# Sets everything up (jobs/setup.sh), then runs the fast tests, serial (one of them on a Slurm, where one is installed)
# and under mpirun with 3 ranks, and checks the style. tests/README.md says more.
#   bash jobs/test.sh --all    the long versions of the tests, too, and 2 and 5 ranks
# Arguments go to pytest in each part:  bash jobs/test.sh -k bits
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cd "$top"
logs=$(mktemp -d)
verdicts=()
status=0

# part NAME COMMAND...: runs it, keeps its verdict and pytest's closing line.
part() {
  local name=$1 code=0 started=$SECONDS
  shift
  echo "===== $name"
  # pytest-timeout ends a test that hangs; this ends a part that hangs outside of tests.
  timeout --kill-after=60 3600 "$@" </dev/null 2>&1 | tee --ignore-interrupts "$logs/$name" || code=${PIPESTATUS[0]}
  keep_verdict "$name" "$code" "$((SECONDS - started))"
}

# style: ruff, mypy and import-linter, beside the serial tests, which leave a core to itself now and then.
style() {
  local code=0 started=$SECONDS
  ruff check || code=1
  ruff format --check || code=1
  python -m mypy || code=1
  lint-imports --cache-dir .pytest_cache/import_linter --no-logo || code=1
  echo "$((SECONDS - started))" >"$logs/style_s"
  return "$code"
}

# keep_verdict NAME CODE SECONDS: keeps the verdict of a part.
keep_verdict() {
  local name=$1 code=$2 verdict
  case $code in
    0) verdict=passed ;;
    5) verdict="nothing selected" ;;
    *) verdict="FAILED (exit code $code)" ;;
  esac
  # Without a choice of tests every part has some, so an empty one is an error.
  if [[ $verdict == FAILED* || ($code = 5 && $has_all = yes) ]]; then status=1; fi
  verdicts+=("$(printf '%-11s %s, %s s: %s' "$name" "$verdict" "$3" "$(closing_line "$logs/$name")")")
}

# Ranks close separately, so a line that tells of failures goes before one that does not.
closing_line() {
  awk '/(passed|failed|error|skipped|deselected|no tests ran).* in [0-9.]+s/ {
         gsub("=", ""); last = $0; if (/failed|error/) bad = $0
       }
       END { print bad ? bad : last ? last : $0 }' "$1"
}

trap 'exit 130' INT # after Ctrl-C pytest still says what has failed; then no further part begins
case "$*" in "" | --all) has_all=yes ;; *) has_all=no ;; esac
tests=(python -m pytest --color=no --durations=10) # no colours: mpirun looks like a terminal
FEDMPI_TEST_REFERENCES=$(mktemp -d) # what one process has computed, for 2, 3 and 5 ranks
export FEDMPI_TEST_REFERENCES
trap 'rm -rf "$FEDMPI_TEST_REFERENCES" "$logs"; kill "${style_pid:-}" 2>/dev/null || true' EXIT
ranks_environment 5 # for serial tests, too: some start mpirun themselves
unset PYTHONDONTWRITEBYTECODE # each process would compile the modules of the tests again, 5 s of CPU time
style >"$logs/style" 2>&1 &
style_pid=$!
# Serial tests do not know each other, so they share the cores. All tests of Slurm share a cluster, so they share a
# process; the fast run has one.
serial=("${tests[@]}" -n auto --maxprocesses 8 --dist worksteal -m "not mpi")
if [[ " $* " == *" --all "* ]]; then
  part serial "${serial[@]}" --ignore tests/slurm "$@"
  part Slurm "${tests[@]}" tests/slurm "$@"
else
  part serial "${serial[@]}" "$@"
fi
code=0
wait "$style_pid" || code=$?
echo "===== style"
cat "$logs/style"
keep_verdict style "$code" "$(cat "$logs/style_s")"
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
