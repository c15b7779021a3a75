# Sourced by the sbatch files here, in the folder of the project:
#
#   resumable COMMAND...   runs a command that a signal may cut short, and puts the job back into the queue then
#
# Slurm's early signal (#SBATCH --signal=B:USR1@120) reaches this shell only; it goes on to mpirun (or srun), which
# tells all ranks. They finish the round, save and end with exit code 75: there is more to do. Requeued, the same
# job goes on from there. SIGTERM would not do: mpirun ends its ranks at once.
#
#   FEDMPI_REQUEUE=no      where a site forbids requeueing: the job ends with 75, and is to be submitted again
set -eo pipefail # without -u: scripts of module and conda read variables that are not set

# Of a task of an array: $SLURM_JOB_ID of one of its tasks is the array's own, and would mean all of them.
job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-}}

# Also while modules load: then nothing is started any more.
pid='' signalled=''
trap 'signalled=yes; [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true' USR1

# The end of the job for the wall-time guard; Slurm before 23.02 does not say it by itself.
if [ -z "${SLURM_JOB_END_TIME:-}" ] && [ -n "$job" ]; then
  end=$(squeue --noheader --jobs "$job" --format %e 2>/dev/null || true)
  if [ -n "$end" ]; then # a job without end has a word there, and no date
    SLURM_JOB_END_TIME=$(date --date "$end" +%s 2>/dev/null || true)
    export SLURM_JOB_END_TIME
  fi
fi

resumable() {
  local code=75
  begun=$(mktemp "$PWD/.begun-XXXXXX" || true) # of the clock of the run's file system
  if [ -z "$signalled" ]; then run_to_its_end "$@" && code=0 || code=$?; fi
  trap '' USR1
  if [ "$code" -eq 138 ]; then code=75; fi # the signal came before the command listened
  if [ "$code" -eq 0 ] && ! is_finished "$@"; then
    if [ -n "$signalled" ]; then code=75; else code=1; fi
    echo "the command ended with 0, but its run is not finished"
  fi
  [ -z "$begun" ] || rm -f "$begun"
  if [ "$code" -eq 75 ] && [ "${FEDMPI_REQUEUE:-yes}" = yes ] && scontrol requeue "$job"; then
    echo "requeued: job $job goes on from what is saved"
    exit 0
  fi
  return "$code"
}

# `mpirun --with-ft ulfm` ends with 0 even if all ranks were killed; so the report of the run must be new.
is_finished() {
  local word last='' dir='' outlives=''
  for word in "$@"; do
    if [ "$last" = --run-dir ]; then dir=$word; fi
    if [ "$word" = --with-ft ]; then outlives=yes; fi
    last=$word
  done
  local report=$dir/report/summary.json
  [ -z "$outlives" ] || [ -z "$dir" ] || [ -z "$begun" ] || { [ -e "$report" ] && [ ! "$begun" -nt "$report" ]; }
}

run_to_its_end() {
  "$@" &
  pid=$!
  [ -z "$signalled" ] || kill -USR1 "$pid" 2>/dev/null || true
  # A signal ends `wait`, not the command; of one that has ended, bash still tells the exit code.
  wait "$pid" || true
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || true; done
  wait "$pid"
}
