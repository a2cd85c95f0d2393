#!/usr/bin/env bash
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Run a command where no other robot can hear it and it can hear none: discovery on this host
# alone, a domain of its own, logs in a temporary folder, and, where the kernel allows it, a
# network namespace with nothing but the loopback interface and a /dev/shm of its own: DDS names
# its segments there by port, so that two runs on one domain would meet in it.
#
#   scripts/ros_sandbox.sh COMMAND [ARGUMENT ...]
set -euo pipefail

ROS_LOG_DIR=$(mktemp -d)
trap 'rm -rf "$ROS_LOG_DIR"' EXIT
export ROS_LOG_DIR
export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
# 1 to 101: above it the ports reach into Linux's ephemeral range.
export ROS_DOMAIN_ID=$((1 + $$ % 101))

loopback_up() {
  if command -v ip >/dev/null; then
    echo 'ip link set lo up'
  else
    # The same by hand: SIOCGIFFLAGS 0x8913, SIOCSIFFLAGS 0x8914, IFF_UP 1.
    echo 'python3 -c "
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    name, flags = struct.unpack(\"16sh\", fcntl.ioctl(s, 0x8913, struct.pack(\"16sh\", b\"lo\", 0)))
    fcntl.ioctl(s, 0x8914, struct.pack(\"16sh\", name, flags | 1))"'
  fi
}

namespace=()
for options in -nm -rnm -n -rn; do
  prepare=$(loopback_up)
  [[ $options != *m ]] || prepare+=' && mount -t tmpfs tmpfs /dev/shm'
  if unshare "$options" -- bash -c "$prepare" 2>/dev/null; then
    namespace=(unshare "$options" -- bash -c "$prepare; exec \"\$@\"" _)
    break
  fi
done
"${namespace[@]}" "$@"
