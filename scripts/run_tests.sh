#!/usr/bin/env bash
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Run the linters and the test tiers against the installed package: all that were named, also
# after a failure. The last lines are each tier's result.
#
# What only computes runs in two lanes of about equal length beside each other (lint and model,
# unit and kernels), and the second lane's output comes when it is through. What waits for clocks
# (server, web, ros) has the machine for itself afterwards.
#
#   scripts/run_tests.sh [--venv FOLDER] [lint] [unit] [model] [server] [web] [ros] [kernels] ...
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

venv=.venv
if [[ ${1-} == --venv ]]; then
  venv=${2:?--venv needs a folder}
  shift 2
fi
bin=$PWD/$venv/bin
# A hung ROS test must not hang the run: DDS threads have been seen to outlive an exception.
ros_limit_s=420
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

note() { # status, what, detail; in files, for lanes are processes of their own
  printf '%-8s %s\n' "$2" "$3" >"$scratch/result-$2"
  (($1 == 0)) || touch "$scratch/failed"
}

lint() {
  local status name
  local -A commands=(
    [ruff]="ruff check ."
    [mypy]="mypy"
    [imports]="lint-imports --no-logo"
  )
  for name in ruff mypy imports; do
    printf '\n== %s\n' "$name"
    # shellcheck disable=SC2086 # words on purpose
    "$bin"/${commands[$name]}
    status=$?
    note "$status" "$name" "$( ((status == 0)) && echo passed || echo FAILED)"
  done
}

tier() { # name, wrapper...
  local name=$1 status
  shift
  printf '\n== test/%s\n' "$name"
  # pytest is started by its program, not by -m: that would put this folder, and with it the
  # sources, in front of the installed package.
  "$@" "$bin/pytest" --require-vocab "test/$name" 2>&1 | tee "$scratch/$name"
  status=${PIPESTATUS[0]}
  if ((status == 137 || status == 124)); then
    note "$status" "$name" "killed after its limit of $ros_limit_s s"
  else
    note "$status" "$name" "$(tail -n 1 "$scratch/$name")"
  fi
}

run_part() {
  case $1 in
    lint) lint ;;
    ros) tier ros scripts/ros_sandbox.sh timeout -s KILL "$ros_limit_s" ;;
    web) scripts/install_web_test.sh; tier web env ;;
    *) tier "$1" env ;;
  esac
}

first=() second=() alone=()
for part in "$@"; do
  case $part in
    lint | model) first+=("$part") ;;
    unit | kernels) second+=("$part") ;;
    *) alone+=("$part") ;;
  esac
done

# Once for all tiers. Those that do not need it say what is missing where they do.
"$bin/python" scripts/build_test_vocab.py || note 1 vocab 'FAILED: no test vocabulary'

for part in "${second[@]}"; do run_part "$part"; done >"$scratch/second" 2>&1 &
lane=$!
for part in "${first[@]}"; do run_part "$part"; done
wait "$lane"
cat "$scratch/second"
for part in "${alone[@]}"; do run_part "$part"; done

printf '\n== results\n'
for part in vocab ruff mypy imports "$@"; do
  [[ ! -e $scratch/result-$part ]] || cat "$scratch/result-$part"
done
[[ ! -e $scratch/failed ]]
