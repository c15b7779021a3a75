#!/usr/bin/env bash
# Collects fedmpi and all that it needs as wheels, for a machine without a network.
#
#   bash jobs/wheelhouse.sh DIR [WORD ...]      further words go to `pip wheel` (another package, an index, --no-deps)
#
# Run it where the registry can be reached, with the same Python, system and kind of CPU as the other machine (some GB,
# because of torch). Then copy DIR there, and install without a network:
#
#   python3 -m venv .venv
#   .venv/bin/python -m pip install --no-index --find-links DIR "fedmpi[mpi]"
#
#   PYTHON               the interpreter whose wheels are collected            (default: python3)
#   FEDMPI_TORCH_INDEX   wheel index to take torch from, as in jobs/setup.sh   (default: pip's own)
#   FEDMPI_TORCH         which torch and torchvision, as in jobs/setup.sh      (default: the newest)
#   FEDMPI_MPI=system    leaves out Open MPI: install fedmpi without [mpi], and mpi4py takes the site's library
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
case ${1:-} in
  "" | -*) echo "jobs/wheelhouse.sh: name a folder for the wheels: bash jobs/wheelhouse.sh DIR" >&2; exit 2 ;;
esac
mkdir -p "$1"
wheels=$(cd "$1" && pwd -P)
shift

collect() { "${PYTHON:-python3}" -m pip wheel --no-input --disable-pip-version-check --wheel-dir "$wheels" "$@"; }

chosen=() # else the newest torch would be collected, too, and installed
if [ -n "${FEDMPI_TORCH_INDEX:-}${FEDMPI_TORCH:-}" ]; then
  # shellcheck disable=SC2086  # several requirements in one variable
  collect ${FEDMPI_TORCH_INDEX:+--index-url "$FEDMPI_TORCH_INDEX"} ${FEDMPI_TORCH:-torch torchvision}
  for wheel in "$wheels"/torch-*.whl "$wheels"/torchvision-*.whl; do
    chosen+=("$(basename "$wheel" | cut -d - -f 1,2 | sed 's/-/==/')")
  done
fi
extra='[mpi]'
if [ "${FEDMPI_MPI:-registry}" = system ]; then extra=''; fi
collect --find-links "$wheels" "$top$extra" "${chosen[@]}" "$@"
echo "$(find "$wheels" -name '*.whl' | wc -l) wheels, $(du -sh "$wheels" | cut -f 1), in $wheels; on the other machine:"
echo "  python3 -m pip install --no-index --find-links $wheels 'fedmpi$extra'"
