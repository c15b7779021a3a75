# Sourced by the sbatch files here, in the folder of the project:
#
#   resumable COMMAND...   runs a command that a signal may cut short, and puts the job back into the queue then
#
# Slurm's early signal (#SBATCH --signal=B:USR1@120) reaches this shell only; it is forwarded to mpirun (or srun), which
# tells all ranks. They finish the round, save and end with exit code 75: there is more to do. Requeued, the same
# job continues from there. SIGTERM would not do: mpirun ends its ranks at once.
#
#   FEDMPI_REQUEUE=no      where a site forbids requeueing: the job ends with 75, and is to be submitted again
set -eo pipefail # without -u: scripts of module and conda read variables that are not set

# Of a task of an array: $SLURM_JOB_ID of one of its tasks is the array's own, and would mean all of them.
job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-}}

# Also while modules load: then nothing is started any more.
pid='' signalled='' again_s=10
heard() {
  signalled=yes
  tell
}
tell() {
  [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true
}
trap heard USR1

# The end of the job, for the wall-time guard. What squeue says counts, without what users set for theirs: Slurm before
# 23.02 sets no variable, so one that is there may be that of the job in which this one was submitted.
if [ -n "$job" ] && end=$(
  unset "${!SQUEUE_@}"
  SLURM_TIME_FORMAT=standard squeue --noheader --jobs "$job" --format %e 2>/dev/null
); then
  case $end in
  [0-9]*) end=$(date --date "$end" +%s) && export SLURM_JOB_END_TIME="$end" ;;
  ?*) unset SLURM_JOB_END_TIME ;; # a word, and no date: the job has no end
  esac
fi

resumable() {
  local code=75 why=''
  read_words "$@"
  if [ -n "$outlives" ] && [ -z "$run_dir" ]; then
    echo "not started: under ULFM mpirun ends with 0 even if all ranks were killed; the command needs a --run-dir"
    return 2
  fi
  begin
  if [ -z "$signalled" ]; then run_to_its_end "$@" && code=0 || code=$?; fi
  trap '' TERM # a requeue ends this shell, but not before it has said so
  judge
  [ -z "$begun" ] || rm -f "$begun" || true
  if [ "$code" -eq 75 ] && [ -z "$why" ] && requeue; then
    echo "requeued: job $job $continues"
    exit 0
  fi
  forget_note
  [ -z "$is_ours" ] || rmdir "$run_dir" 2>/dev/null || true # the command was refused, and left nothing there
  trap - TERM
  [ "$code" -eq 0 ] || say_how_to_continue
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

# In the run directory: a file that has the time of its file system, and in the note of the last requeue how many starts
# of this job in a row have saved nothing. The note stays until this start ends: Slurm, too, may requeue the job. A second
# job there is refused by the command, and leaves the files of the first alone.
begin() {
  local noted='' new=''
  begun='' fruitless=0 is_ours=''
  [ -n "$run_dir" ] || return 0
  [ -d "$run_dir" ] || is_ours=yes
  mkdir -p "$run_dir" 2>/dev/null || true # where that cannot be, the command says why
  begun=$run_dir/.begun${job:+-$job}
  rm -f "$begun" "$begun".???????? "$note.$job".???????? 2>/dev/null || true
  # Under a name that nobody can guess, then renamed: in a shared folder a link may lie under any other name.
  new=$(mktemp "$begun.XXXXXXXX" 2>/dev/null) && mv -fT "$new" "$begun" 2>/dev/null || begun=''
  read -r noted fruitless < <(noted) || true
  [[ $noted = "$job" && $fruitless =~ ^[0-9]$ ]] || fruitless=0
}

# What the code means, and whether requeueing would only go round in circles, because nothing is ever saved.
judge() {
  local saved
  saved=$(ls -t "$run_dir"/checkpoints/round-*.h5 2>/dev/null | head -n 1 || true)
  continues='continues from what is saved'
  if [ -n "$run_dir" ] && [ -z "$saved" ]; then continues='begins again'; fi
  case $code in
  138) code=75 ;; # the signal came before the command listened
  1) if [ -n "$signalled" ]; then code=75; fi ;; # before some ranks did, and the others gave up
  0) is_finished || unfinished ;;
  esac
  if is_new "$saved"; then fruitless=0; else fruitless=$((fruitless + 1)); fi
  if [ -n "$run_dir" ] && [ "$fruitless" -ge 6 ]; then
    why=" ($fruitless starts in a row saved nothing: the job may need more time)"
  fi
}

# `mpirun --with-ft ulfm` ends with 0 even if all ranks were killed; so the report of the run must be new.
is_finished() {
  [ -z "$outlives" ] || is_new "$run_dir/report/summary.json"
}

is_new() {
  [ -n "$begun" ] && [ -e "$1" ] && [ ! "$begun" -nt "$1" ]
}

unfinished() {
  if [ -n "$signalled" ]; then code=75; else code=1; fi
  echo "the command ended with 0, but its run is not finished"
}

# The note, for `jobs/submit.py status`, comes first: the job may end before scontrol does. Without one, starts that save
# nothing would not be counted.
requeue() {
  [ "${FEDMPI_REQUEUE:-yes}" = yes ] && [ -n "$job" ] || return 1
  [ -z "$note" ] || write_note || return 1
  scontrol requeue "$job"
}

# Whole, or as it was: on a full disk.
write_note() {
  local new='' problem=''
  if problem=$(mktemp "$note.$job.XXXXXXXX" 2>&1); then
    new=$problem
    if problem=$({ echo "$job $fruitless" >"$new" && chmod =rw "$new" && sync "$new" && mv -fT "$new" "$note"; } 2>&1)
    then return 0; fi
    rm -f "$new" || true
  fi
  why=" ($note cannot be written: ${problem##*: })"
  return 1
}

# What the note says. A pipe or a device that another user has put there is not waited for.
noted() {
  dd if="$note" iflag=nonblock,fullblock bs=200 count=1 2>/dev/null | tr -d '\0'
}

# If it is of this job.
forget_note() {
  local noted=''
  [ -n "$note" ] && read -r noted _ < <(noted) || true
  [ "$noted" != "$job" ] || rm -f "$note" || true
}

say_how_to_continue() {
  local where='' # a new job has a new number
  case $run_dir in *-"${SLURM_JOB_ID:-}") where=", with --run-dir $run_dir after the file's name," ;; esac
  if [ "$code" -eq 75 ]; then
    echo "not requeued$why: submit it again$where to continue (exit code 75)"
  elif [ "$code" -eq 2 ]; then
    echo "ended with code 2: fix what is said above, then submit it again${where%,}"
  else
    echo "ended with code $code; submitted again${where:-,} it $continues"
  fi
}

# A signal may be lost: srun is still making the job's step, or the ranks do not listen yet. So it is told again.
run_to_its_end() {
  local waited_s=0
  "$@" &
  pid=$!
  [ -z "$signalled" ] || tell
  # A signal ends `wait`, not the command; of one that has ended, bash still tells the exit code.
  while kill -0 "$pid" 2>/dev/null; do
    if [ -z "$signalled" ]; then
      wait "$pid" || true
    else
      sleep 1 || true
      waited_s=$((waited_s + 1))
      [ $((waited_s % again_s)) -ne 0 ] || tell
    fi
  done
  set -- "$pid"
  pid='' # its number may be another's soon
  wait "$1"
}
