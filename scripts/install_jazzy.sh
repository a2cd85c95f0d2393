#!/usr/bin/env bash
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Build gemma_thor_ros on Ubuntu 24.04 with ROS 2 Jazzy from apt, a Jetson Thor included:
# a virtual environment that sees the system's packages, NumPy 1.26, and a colcon build run by
# that environment's Python. docs/install.md tells what it does step by step.
#
#   scripts/install_jazzy.sh [--workspace FOLDER] [--venv FOLDER] [--cuda] [--interfaces-only]
#
#   --workspace FOLDER  colcon workspace (~/ros2_ws); this repository is linked into its src/
#   --venv FOLDER       virtual environment (WORKSPACE/.venv)
#   --cuda              CuPy 13.6 as well; needs the CUDA 13 toolkit of the system
#   --interfaces-only   the interfaces and the client class alone, for the robot's other machines
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

workspace=$HOME/ros2_ws
venv=
requirements=$repository/requirements-jazzy.txt
cuda=no
interfaces_only=OFF

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

while (($#)); do
  case $1 in
    --workspace) workspace=${2:?--workspace needs a folder}; shift 2 ;;
    --venv) venv=${2:?--venv needs a folder}; shift 2 ;;
    --cuda) cuda=yes; requirements=$repository/requirements-jazzy-cuda.txt; shift ;;
    --interfaces-only) interfaces_only=ON; shift ;;
    -h | --help) sed -n '5,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown option '$1'; --help lists them" ;;
  esac
done
venv=${venv:-$workspace/.venv}

ros=/opt/ros/jazzy
[[ -f $ros/setup.bash ]] || die "no ROS 2 Jazzy in $ros: install ros-jazzy-ros-base first" \
  '(https://docs.ros.org/en/jazzy/Installation.html)'

say 'system packages'
packages=(build-essential python3-dev python3-venv python3-colcon-common-extensions
  ros-jazzy-rosidl-default-generators ros-jazzy-ament-cmake ros-jazzy-rclpy
  ros-jazzy-diagnostic-msgs ros-jazzy-geometry-msgs ros-jazzy-lifecycle-msgs
  ros-jazzy-sensor-msgs ros-jazzy-std-srvs ros-jazzy-launch-ros ros-jazzy-ros2launch)
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] \
    || missing+=("$package")
done
if ((${#missing[@]})); then
  sudo=()
  ((EUID == 0)) || sudo=(sudo)
  "${sudo[@]}" apt-get update
  "${sudo[@]}" apt-get install --yes --no-install-recommends "${missing[@]}"
fi

if [[ $cuda == yes ]]; then
  # CuPy 13.6 does not find the NVRTC and the headers that PyPI has, only an installed toolkit.
  compgen -G '/usr/local/cuda*/lib64/libnvrtc.so.13*' >/dev/null \
    || compgen -G '/usr/local/cuda*/targets/*/lib/libnvrtc.so.13*' >/dev/null \
    || die 'no CUDA 13 toolkit in /usr/local/cuda*: on a Jetson apt install nvidia-jetpack,' \
      'elsewhere cuda-toolkit-13-0'
fi

say "Python environment $venv"
mkdir -p "$workspace/src"
# /usr/bin/python3 by its path: ROS from apt is built for this one, whatever else is in front.
[[ -x $venv/bin/python ]] || /usr/bin/python3 -m venv --system-site-packages "$venv"
touch "$venv/COLCON_IGNORE"
if [[ $interfaces_only == OFF ]]; then
  "$venv/bin/python" -m pip install --disable-pip-version-check --requirement "$requirements"
fi

say "building in $workspace"
[[ -e $workspace/src/gemma_thor_ros ]] || ln -s "$repository" "$workspace/src/gemma_thor_ros"
# The setup files of ROS read variables that may not be set.
set +u
# shellcheck source=/dev/null
source "$ros/setup.bash"
# shellcheck source=/dev/null
source "$venv/bin/activate"
set -u
cd "$workspace"
# colcon by the environment's Python, so that the programs it installs start with that one.
"$venv/bin/python" "$(command -v colcon)" build --packages-select gemma_thor_ros \
  --cmake-args -DCMAKE_BUILD_TYPE=Release "-DPython3_EXECUTABLE=$venv/bin/python" \
  "-DGEMMA_THOR_INTERFACES_ONLY=$interfaces_only"

say 'done; in each new shell:'
printf '  source %s/install/setup.bash\n' "$workspace"
[[ $interfaces_only == ON ]] || printf '  ros2 launch gemma_thor_ros llm.launch.py\n'
