#!/usr/bin/env bash
# Sets everything up (jobs/setup.sh), then runs the main job: FedHM on embedded real data, 5 MPI ranks.
# Arguments go to fedmpi.main:  bash jobs/quickstart.sh rounds=5     FEDMPI_RANKS=3 sets the ranks.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

num_ranks=$(whole_number FEDMPI_RANKS 5)
ranks_environment "$num_ranks"

# mpirun listens on all interfaces. Where the system allows it, the job gets a network that has nothing but loopback. In
# a job of a scheduler, which may have several nodes, mpirun needs the network.
alone=()
if [ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-}" ]; then
  as_user=()
  [ "$(id -u)" = 0 ] || as_user=(--user --map-current-user --keep-caps)
  alone=(unshare --net "${as_user[@]}" sh -c 'ip link set lo up && exec "$@"' sh)
  "${alone[@]}" true 2>/dev/null || alone=()
fi
exec "${alone[@]}" mpirun -n "$num_ranks" python -m fedmpi.main "$@"
