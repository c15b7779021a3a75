#!/usr/bin/env bash
# What the tests on a real Slurm (tests/slurm) need, from Debian or Ubuntu: Slurm, munge, and PMIx for `srun --mpi=pmix`.
# Needs root and a network; says why if it cannot. Those tests then skip, with the reason.
set -euo pipefail

is_there() { PATH=$PATH:/usr/sbin command -v slurmctld slurmd munged sbatch >/dev/null; }

if is_there; then exit 0; fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "jobs/install_slurm.sh: needs apt-get and root; install slurm-wlm, munge and libpmix-dev yourself" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if { timeout 300 apt-get update && timeout 900 apt-get install -y --no-install-recommends slurm-wlm munge libpmix-dev; } \
  </dev/null >"$log" 2>&1; then
  rm -f "$log"
else
  tail -n 5 "$log" >&2
  echo "jobs/install_slurm.sh: apt-get could not install slurm-wlm, munge and libpmix-dev (above: the end of $log)" >&2
  exit 1
fi
