# Sourced by the sbatch files here, in the folder of the project:
#
#   resumable COMMAND...   runs a command that a signal may cut short, and puts the job back into the queue then
#
# Slurm's early signal (#SBATCH --signal=B:USR1@120) reaches this shell only; it goes on to mpirun (or srun), which
# tells all ranks. They finish the round, save and end with exit code 75: there is more to do. Requeued, the same
# job goes on from there. SIGTERM would not do: mpirun ends its ranks at once.
#
#   FEDMPI_REQUEUE=no      where a site forbids requeueing: the job ends with 75, and is to be submitted again
set -euo pipefail

# The end of the job for the wall-time guard; Slurm before 23.02 does not say it by itself.
if [ -z "${SLURM_JOB_END_TIME:-}" ] && [ -n "${SLURM_JOB_ID:-}" ]; then
  end=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %e 2>/dev/null || true)
  if [ -n "$end" ]; then # a job without end has a word there, and no date
    SLURM_JOB_END_TIME=$(date --date "$end" +%s 2>/dev/null || true)
    export SLURM_JOB_END_TIME
  fi
fi

resumable() {
  local code=0
  pid=
  trap 'kill -USR1 "$pid" 2>/dev/null || true' USR1
  "$@" &
  pid=$!
  # A signal ends `wait`, not the command; of one that has ended, bash still tells the exit code.
  wait "$pid" || true
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || true; done
  wait "$pid" || code=$?
  trap '' USR1
  if [ "$code" -eq 138 ]; then code=75; fi # the signal came before the command listened
  if [ "$code" -eq 75 ] && [ "${FEDMPI_REQUEUE:-yes}" = yes ] && scontrol requeue "$SLURM_JOB_ID"; then
    echo "requeued: job $SLURM_JOB_ID goes on from what is saved"
    exit 0
  fi
  return "$code"
}
