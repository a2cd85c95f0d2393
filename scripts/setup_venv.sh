#!/usr/bin/env bash
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Bring the virtual environment up to date, doing only what is needed: `make setup` and every
# other target start here.
#
#   scripts/setup_venv.sh [--venv FOLDER] [--numpy1] [--link | --copy]
#
#   --venv FOLDER  another environment than .venv
#   --numpy1       with the NumPy 1.26 line of a Jetson (requirements-jazzy.txt)
#   --link         leave the Python modules linked to this tree, so that edits are live
#   --copy         back to an ordinary installation
#
# The environment remembers in .stamps/ what it was made from: a second run compares a few hashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
mode=keep
groups=(build run test)
constraints=constraints.txt
pip=(-m pip --disable-pip-version-check --no-input)

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

while (($#)); do
  case $1 in
    --venv) venv=${2:?--venv needs a folder}; shift 2 ;;
    --numpy1) constraints=requirements-jazzy.txt; shift ;;
    --link) mode='link'; shift ;;
    --copy) mode='copy'; shift ;;
    *) die "unknown option '$1'" ;;
  esac
done
stamps=$venv/.stamps

hash_of() { # of the names and contents of all files below the given paths
  find "$@" -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum \
    | sha256sum | cut -d ' ' -f 1
}

is_current() { [[ -f $stamps/$1 && $(<"$stamps/$1") == "$2" ]]; }

check_build_tools() {
  local tool missing=()
  for tool in cc c++; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) || die "no C and C++ compiler (${missing[*]}): the ROS 2 interfaces" \
    'are compiled once (Debian and Ubuntu: apt install build-essential)'
  "$venv/bin/python" -c '
import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").is_file())' \
    || die "no Python.h for $("$venv/bin/python" -V) (Debian and Ubuntu: apt install python3-dev)"
}

make_venv() {
  if [[ -x $venv/bin/python ]] && "$venv/bin/python" -c '' 2>/dev/null; then
    return
  fi
  local python
  python=$(scripts/pick_python.sh)
  say "making $venv with $python ($("$python" -V 2>&1))"
  "$python" -m venv --clear "$venv"
}

install_requirements() {
  local wanted current
  wanted=$(python_here scripts/requirements.py "${groups[@]}")
  if [[ $constraints == requirements-jazzy.txt ]]; then
    # That file pins NumPy; the Python packages beside it are the same.
    wanted=$(grep -v '^numpy==' <<<"$wanted")$'\n'numpy
  fi
  current=$({ printf '%s\n' "$wanted"; cat "$constraints"; } | sha256sum)
  if ! is_current requirements "$current"; then
    say "installing the pinned requirements into $venv"
    python_here "${pip[@]}" install -qq --constraint constraints.txt \
      --constraint "$constraints" \
      --requirement <(printf '%s\n' "$wanted")
    mkdir -p "$stamps"
    printf '%s' "$current" >"$stamps/requirements"
  fi
}

python_here() { "$venv/bin/python" "$@"; }

# The wheel is built first and swapped in afterwards, so that a failed build changes nothing and
# programs that are running miss the package for a second at most.
install_package() {
  local wheels=$venv/.wheel
  check_build_tools
  say "building the package (the first time takes about a minute)"
  rm -rf "$wheels"
  PATH=$PWD/$venv/bin:$PATH python_here "${pip[@]}" wheel -qq --no-build-isolation --no-deps \
    --wheel-dir "$wheels" .
  python_here scripts/link_sources.py --unlink
  python_here "${pip[@]}" install -qq --no-deps --force-reinstall "$wheels"/*.whl
  rm -rf "$wheels"
}

update_package() {
  local build_inputs=(CMakeLists.txt package.xml setup.py pyproject.toml cmake msg srv action)
  local sources=("${build_inputs[@]}" config kernels launch gemma_thor_ros)
  local current linked=no
  [[ -f $stamps/linked ]] && linked=yes
  case $mode in link) linked=yes ;; copy) linked=no ;; esac
  if [[ $linked == yes ]]; then
    # Modules and data are read from the tree itself, so only what is generated can be stale.
    current=$(hash_of "${build_inputs[@]}")
    if ! is_current linked "$current"; then
      install_package
      printf '%s' "$current" >"$stamps/linked"
    fi
    rm -f "$stamps/package"
    python_here scripts/link_sources.py
  else
    current=$(hash_of "${sources[@]}")
    if ! is_current package "$current"; then
      install_package
      printf '%s' "$current" >"$stamps/package"
    fi
    rm -f "$stamps/linked"
  fi
}

make_venv
mkdir -p "$stamps"
exec 9>"$stamps/lock"
flock 9
install_requirements
update_package
