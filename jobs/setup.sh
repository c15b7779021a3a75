#!/usr/bin/env bash
# Makes or reuses .venv and installs fedmpi into it (editable), with an MPI and the tests' packages.
# jobs/quickstart.sh and jobs/test.sh source this file; `bash jobs/setup.sh` only sets up.
#
#   PYTHON               interpreter to make .venv with, Python >= 3.10           (default: python3)
#   FEDMPI_MPI           registry: Open MPI as a wheel; system: the site's mpicc  (default: registry)
#   FEDMPI_TORCH_INDEX   wheel index to take torch from                           (default: pip's own)
#   FEDMPI_TORCH         which torch and torchvision                              (default: the newest)
#
# A V100 (sm_70) needs torch's CUDA 12.6 builds, since the default ones no longer carry it:
#   export FEDMPI_TORCH_INDEX=https://download.pytorch.org/whl/cu126
#   export FEDMPI_TORCH="torch==2.7.* torchvision==0.22.*"
#   bash jobs/setup.sh
#
# .venv remembers these choices: later calls need not repeat them. Other choices, a moved folder, a broken interpreter or
# an interrupted set-up make .venv anew; a changed setup.cfg updates it. A .venv that was made by hand is not replaced.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$top/.venv
PATH=${PATH//"$venv/bin:"/} # an activated .venv must not be what makes the next .venv, nor lend its mpicc

fail() { echo "jobs/setup.sh: $*" >&2; exit 1; }
mistake() { echo "jobs/setup.sh: $*" >&2; exit 2; }

# whole_number NAME DEFAULT: the value of the environment variable NAME, DEFAULT where it is unset or empty.
whole_number() {
  local value=${!1:-$2} LC_ALL=C
  [[ $value =~ ^[1-9][0-9]{0,8}$ ]] || mistake "$1 is '$value', and must be a whole number from 1; unset it for $2"
  echo "$value"
}

# ranks_environment N: what mpirun needs to start N ranks on this machine, as root and with fewer cores, too.
ranks_environment() {
  export HOME="${HOME:-$top}" # Open MPI does not start without
  local variables
  variables=$(python -m fedmpi.mpi.mpirun "$1")
  eval "$variables"
}

remembered() { sed -n "s|^$1=||p" "$venv/fedmpi-choices" 2>/dev/null || true; }
choices() { printf '%s\n' "folder=$top" "python=$python" "mpi=$mpi" "torch_index=$torch_index" "torch=$torch"; }
stamp() { choices; cat "$top/setup.cfg" "$top/pyproject.toml" | cksum; }
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
is_ready() { [ "$(cat "$venv/fedmpi-stamp" 2>/dev/null)" = "$(stamp)" ] && is_new_enough "$venv/bin/python"; }
is_reusable() {
  is_new_enough "$venv/bin/python" && [ ! -e "$venv/fedmpi-unfinished" ] &&
    { [ ! -e "$venv/fedmpi-choices" ] || [ "$(cat "$venv/fedmpi-choices")" = "$(choices)" ]; }
}

# step TEXT COMMAND...: one line, how long it took, and the end of the log if it fails.
step() {
  local text=$1 started=$SECONDS
  shift
  printf 'set-up: %s ... ' "$text"
  if "$@" >>"$venv/fedmpi-setup.log" 2>&1 </dev/null; then echo "$((SECONDS - started)) s"; return; fi
  echo "failed"
  tail -n 15 "$venv/fedmpi-setup.log" >&2
  fail "the step '$text' failed (above: the end of .venv/fedmpi-setup.log)"
}

pip_install() { "$venv/bin/python" -m pip install --no-input --disable-pip-version-check "$@"; }

new_venv() {
  command -v "$python" >/dev/null || fail "no '$python' found: install Python >= 3.10, or say PYTHON=/path/to/python3"
  is_new_enough "$python" ||
    fail "$python is $("$python" -V 2>&1), and Python >= 3.10 is needed: say PYTHON=/path/to/a/newer/python3"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments: install its venv module (Debian, Ubuntu: apt install python3-venv)"
  rm -rf "$venv"
  mkdir "$venv"
  touch "$venv/fedmpi-unfinished"
  step "virtual environment with $("$python" -V 2>&1)" "$python" -m venv "$venv"
}

# The lock is on setup.cfg, because .venv itself may be replaced; it ends with the subshell.
set_up() (
  if command -v flock >/dev/null; then
    exec 9<>"$top/setup.cfg"
    flock -n 9 || { echo "set-up: waiting for another call to finish"; flock 9; }
    if is_ready; then exit 0; fi
  fi
  case $mpi in
    registry) extras=mpi,test ;;
    system)
      extras=test
      command -v mpicc >/dev/null || fail "FEDMPI_MPI=system needs mpicc in PATH: load the site's MPI module" ;;
    *) mistake "FEDMPI_MPI is '$mpi', and must be 'registry' or 'system'" ;;
  esac
  is_reusable || new_venv
  rm -f "$venv/fedmpi-stamp"
  touch "$venv/fedmpi-unfinished"
  choices >"$venv/fedmpi-choices"
  step "pip" pip_install "pip>=21.3" # an older one cannot install a setup.cfg project editable
  if [ -n "$torch_index$torch" ]; then
    # shellcheck disable=SC2086  # several requirements in one variable
    step "torch (some GB)" pip_install ${torch_index:+--index-url "$torch_index"} ${torch:-torch torchvision}
  fi
  if [ "$mpi" = system ]; then # without pip's cache: a wheel there may have been built against another MPI
    step "mpi4py against $(command -v mpicc)" pip_install --no-cache-dir --no-binary mpi4py "mpi4py>=4.0,<5"
  fi
  step "fedmpi and what it needs (torch: some GB at first)" pip_install -e "$top[$extras]"
  # Loads the MPI library without starting it, which a login node may not allow.
  step "trying torch and MPI" "$venv/bin/python" -c \
    'import torchvision, mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI'
  stamp >"$venv/fedmpi-stamp"
  rm -f "$venv/fedmpi-unfinished"
  echo "set-up: done, in .venv"
)

python=${PYTHON-$(remembered python)} python=${python:-python3}
mpi=${FEDMPI_MPI-$(remembered mpi)} mpi=${mpi:-registry}
torch_index=${FEDMPI_TORCH_INDEX-$(remembered torch_index)}
torch=${FEDMPI_TORCH-$(remembered torch)}
is_ready || set_up
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
unset PYTHONHOME
