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
  local code=75 why=''
  read_words "$@"
  if [ -n "$outlives" ] && [ -z "$run_dir" ]; then
    echo "not started: under ULFM mpirun ends with 0 even if all ranks were killed; the command needs a --run-dir"
    return 2
  fi
  begun=$(mktemp "$PWD/.begun-XXXXXX" || true) # of the clock of the run's file system
  rm -f "$note"
  if [ -z "$signalled" ]; then run_to_its_end "$@" && code=0 || code=$?; fi
  trap '' USR1 TERM # a requeue ends this shell, but not before it has said so
  judge
  [ -z "$begun" ] || rm -f "$begun"
  if [ "$code" -eq 75 ] && [ -z "$why" ] && requeue; then
    echo "requeued: job $job $goes_on"
    exit 0
  fi
  [ "$code" -eq 0 ] || say_how_to_go_on
  return "$code"
}

# Of the command's words the last --run-dir, and whether the job outlives its ranks.
read_words() {
  local word last=''
  run_dir='' outlives=''
  for word in "$@"; do
    if [ "$last" = --run-dir ]; then run_dir=$word; fi
    case $word in
    --run-dir=*) run_dir=${word#*=} ;;
    --with-ft | --with-ft=*) outlives=yes ;;
    esac
    last=$word
  done
  case ${OMPI_MCA_mpi_ft_enable,,} in 1 | true | yes | enabled) outlives=yes ;; esac
  note=${run_dir:+$run_dir/requeued}
}

# What the code means, and whether requeueing would only go round in circles, because nothing is ever saved.
judge() {
  local saved
  saved=$(ls -t "$run_dir"/checkpoints/round-*.h5 2>/dev/null | head -n 1 || true)
  goes_on='goes on from what is saved'
  if [ -n "$run_dir" ] && [ -z "$saved" ]; then goes_on='begins again'; fi
  case $code in
  138) code=75 ;; # the signal came before the command listened
  1) if [ -n "$signalled" ]; then code=75; fi ;; # before some ranks did, and the others gave up
  0) is_finished || unfinished ;;
  esac
  if [ -n "$run_dir" ] && ! is_new "$saved" && [ "${SLURM_RESTART_COUNT:-0}" -ge 5 ]; then
    why=" (start $((SLURM_RESTART_COUNT + 1)) of this job, and nothing was saved in it: it may need more time)"
  fi
}

# `mpirun --with-ft ulfm` ends with 0 even if all ranks were killed; so the report of the run must be new.
is_finished() {
  [ -z "$outlives" ] || is_new "$run_dir/report/summary.json"
}

is_new() {
  [ -e "$1" ] && [ ! "$begun" -nt "$1" ]
}

unfinished() {
  if [ -n "$signalled" ]; then code=75; else code=1; fi
  echo "the command ended with 0, but its run is not finished"
}

# The note, for `jobs/submit.py status`, comes first: the job may end before scontrol does.
requeue() {
  [ "${FEDMPI_REQUEUE:-yes}" = yes ] || return 1
  [ ! -d "$run_dir" ] || echo "$job" >"$note" || true
  scontrol requeue "$job" && return
  rm -f "$note"
  return 1
}

say_how_to_go_on() {
  local where='' # a new job has a new number
  case $run_dir in *-"${SLURM_JOB_ID:-}") where=", with --run-dir $run_dir in its file," ;; esac
  if [ "$code" -eq 75 ]; then
    echo "not requeued$why: submit it again$where to go on (exit code 75)"
  else
    echo "ended with code $code; submitted again${where:-,} it $goes_on"
  fi
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
