#!/usr/bin/env bash
# Sets everything up (jobs/setup.sh), then runs the main job: FedHM on embedded real data, 5 MPI ranks.
# Arguments go to fedmpi.main:  bash jobs/quickstart.sh rounds=5     FEDMPI_RANKS=3 sets the ranks.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

num_ranks=$(whole_number FEDMPI_RANKS 5)
ranks_environment "$num_ranks"
on_this_machine mpirun -n "$num_ranks" python -m fedmpi.main "$@"
