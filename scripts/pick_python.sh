#!/usr/bin/env bash
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Print the first Python that fits and really runs: version managers leave launchers for versions
# that are not there.
set -euo pipefail

for candidate in python3.12 python3.13 python3.11 python3; do
  if "$candidate" -c '
import sys, ensurepip, venv
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; then
    printf '%s\n' "$candidate"
    exit 0
  fi
done
printf '%s\n' 'error: no usable Python. Needed is python3.12, python3.13 or python3.11 with its' \
  'venv module (Debian and Ubuntu: apt install python3-venv python3-dev).' >&2
exit 1
