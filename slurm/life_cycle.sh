# Sourced by job.sbatch and the files like it:
#
#   resumable RUN_DIR COMMAND...   runs a command that a signal may stop; then it puts the job back into the queue
#
# Slurm's early signal (#SBATCH --signal=B:USR1@120) reaches this shell only, which forwards it to mpirun or srun. These
# tell all ranks: they finish the round, save, and end with exit code 75. SIGTERM would make mpirun end them at once.
#
#   FEDMPI_REQUEUE=no   where a site forbids requeueing: the job ends with 75, and is to be submitted again
set -eo pipefail # without -u: scripts of module and conda read variables that are not set

# $SLURM_JOB_ID of one task of an array is the array's own number, and would requeue all tasks.
job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-}}
pid='' is_signalled=''
forward() { is_signalled=yes; [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true; }
trap forward USR1 # from here on, also while modules load

# Ranks stop in time for the end of the job. Slurm before 23.02 does not say when that is, and a job that was submitted
# within another one has that one's variable.
if [ -n "$job" ] && end=$(
  unset "${!SQUEUE_@}"
  SLURM_TIME_FORMAT=standard squeue --noheader --jobs "$job" --format %e 2>/dev/null
); then
  case $end in
    [0-9]*) end=$(date --date "$end" +%s) && export SLURM_JOB_END_TIME="$end" ;;
    ?*) unset SLURM_JOB_END_TIME ;; # N/A: the job has no end
  esac
fi

resumable() {
  local run_dir=$1 code=75 last_job='' fruitless=0 why='' checkpoint report
  shift
  read -r last_job fruitless 2>/dev/null <"$run_dir/requeued" || true
  [[ $last_job = "$job" && $fruitless =~ ^[0-9]$ ]] || fruitless=0
  checkpoint=$(newest "$run_dir/checkpoints") report=$(newest "$run_dir/report/summary.json")
  if [ -z "$is_signalled" ]; then run "$@" && code=0 || code=$?; fi

  if [ "$code" = 0 ] && [ "$(newest "$run_dir/report/summary.json")" = "$report" ]; then
    echo "the command ended with 0, but its run is not finished" # mpirun --with-ft ulfm, whose ranks were all killed
    code=1
  fi
  # The signal came before mpirun listened to it (138), or before some ranks did, and the others gave up (1).
  if [ "$code" = 138 ] || { [ "$code" = 1 ] && [ -n "$is_signalled" ]; }; then code=75; fi
  if [ "$(newest "$run_dir/checkpoints")" = "$checkpoint" ]; then fruitless=$((fruitless + 1)); else fruitless=0; fi
  if [ "$code" = 75 ]; then
    [ "$fruitless" -lt 6 ] || why=" ($fruitless starts in a row saved nothing: the job may need more time)"
    if [ -z "$why" ] && requeue; then exit 0; fi
    echo "not requeued$why: submit it again to continue (exit code 75)"
  fi
  rm -f "$run_dir/requeued" || true
  return "$code"
}

newest() { ls -l --full-time "$1" 2>/dev/null | tail -n 1 || true; }

# The note comes first: Slurm ends this shell. Without it, starts that save nothing would not be counted.
requeue() {
  [ "${FEDMPI_REQUEUE:-yes}" = yes ] && [ -n "$job" ] || return 1
  mkdir -p "$run_dir" && echo "$job $fruitless" >"$run_dir/requeued" || return 1
  echo "requeueing job $job, which continues from what is saved"
  scontrol requeue "$job"
}

# A signal ends `wait`, not the command. It is sent again and again: srun loses one while it makes the job's step.
run() {
  "$@" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if [ -z "$is_signalled" ]; then wait "$pid" || true; else forward && sleep 2 || true; fi
  done
  wait "$pid" # of a command that has ended, bash still knows the exit code
}
