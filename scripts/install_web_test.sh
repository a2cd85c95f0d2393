#!/usr/bin/env bash
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Install the browser that test/web drives, where none is there and where we may: as root on
# Debian. Anywhere else it says what to do and leaves; the tests are then skipped, loudly.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null; then
    exit 0
  fi
done

skip() { printf 'no browser for test/web: %s\n' "$*" >&2; exit 0; }

# shellcheck disable=SC1091 # lies on the machine
[[ -r /etc/os-release ]] && . /etc/os-release
[[ ${ID-} == debian ]] || skip 'install chromium with your package manager (Ubuntu: as a snap)'
((EUID == 0)) || skip 'run: sudo apt-get install chromium'

echo 'installing chromium for test/web (about 350 MB, once)' >&2
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -q -y --no-install-recommends chromium)
# The lists may be old or missing: they are fetched when the first try fails.
"${install[@]}" >/dev/null 2>&1 || { apt-get -q update >/dev/null && "${install[@]}" >/dev/null; } \
  || skip 'apt-get could not install chromium'
