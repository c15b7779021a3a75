#!/usr/bin/env bash
# What tests need beside Python, from Debian or Ubuntu: for those on a real Slurm (tests/slurm) Slurm, munge, and PMIx for
# `srun --mpi=pmix`; for those of pages in a real browser chromium. Needs root and a network; says why if it cannot.
# Those tests then skip, with the reason.
set -euo pipefail

is_there() { PATH=$PATH:/usr/sbin command -v "$@" >/dev/null; }

packages=()
is_there slurmctld slurmd munged sbatch || packages+=(slurm-wlm munge libpmix-dev)
is_there chromium || is_there google-chrome || packages+=(chromium fonts-dejavu-core)
if [ ${#packages[@]} = 0 ]; then exit 0; fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "jobs/install_for_tests.sh: needs apt-get and root; install yourself: ${packages[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if { timeout 300 apt-get update && timeout 900 apt-get install -y --no-install-recommends "${packages[@]}"; } \
  </dev/null >"$log" 2>&1; then
  rm -f "$log"
else
  tail -n 5 "$log" >&2
  echo "jobs/install_for_tests.sh: apt-get could not install ${packages[*]} (above: the end of $log)" >&2
  exit 1
fi
