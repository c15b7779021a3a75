#!/usr/bin/env bash
# Runs what takes hours and no commit waits for; not part of CI. Fails if one part does.
#   bash tests/nightly/run.sh [RUNS]    so many runs of each kind of attack (default: 40)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
runs=${1:-40}
source jobs/setup.sh
set +e
ranks_environment 5
export PYTHONPATH=tests
failed=()

part() {
  echo "===== $1"
  "${@:2}" || failed+=("$1")
}

for mode in ranks job stops combinations; do
  part "$mode" python -m nightly.kill "$mode" --count "$runs" --seed "$RANDOM"
done
# Damaged files by the thousand, other MPIs, built environments, all trainings on digits, the notebook, all nets of
# torchvision; bits of every variant of a method, and 200 drawn nets, on 2, 3 and 5 ranks; faults that the tests must find.
FEDMPI_TEST_EXAMPLES=2000 part damage python -m pytest -q tests/unit/test_damaged_files.py
FEDMPI_TEST_EXAMPLES=500 part "damaged runs" python -m pytest -q tests/end_to_end/test_damaged.py -k any_file
part nightly python -m pytest -q --nightly tests -m nightly
for ranks in 2 3 5; do
  part "bits on $ranks" mpirun -n "$ranks" python -m pytest -q --with-mpi -m mpi --nightly tests/mpi
done
part faults python -m nightly.faults
echo "failed: ${failed[*]:-nothing}"
[ ${#failed[@]} = 0 ]
