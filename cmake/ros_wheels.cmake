# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# Read by setup.py's build against the ROS 2 wheels alone, never by colcon on a ROS machine:
#   cmake -DCMAKE_PROJECT_gemma_thor_ros_INCLUDE=cmake/ros_wheels.cmake \
#     -DGEMMA_THOR_WHEELS_PREFIX=<folder with the wheels' lib/ and share/>
#
# The wheels lay an install prefix into the environment as /opt/ros/<distro> is laid out, but
# nobody has sourced a setup file for it.
if(NOT IS_DIRECTORY "${GEMMA_THOR_WHEELS_PREFIX}/share/ament_index")
  message(FATAL_ERROR "GEMMA_THOR_WHEELS_PREFIX='${GEMMA_THOR_WHEELS_PREFIX}' holds no ROS 2 wheels")
endif()
list(PREPEND CMAKE_PREFIX_PATH "${GEMMA_THOR_WHEELS_PREFIX}")
set(ENV{AMENT_PREFIX_PATH} "${GEMMA_THOR_WHEELS_PREFIX}")

# Two kinds of include folder in exported targets stop CMake, so they are dropped once the
# whole CMakeLists.txt has been read:
# - The message wheels were built in a container, whose Python and NumPy folders they still name:
#   a folder that does not exist is refused.
# - Our own target exports NumPy's folder: one below the source tree, as .venv is, is refused.
function(_gemma_thor_drop_include_dirs)
  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  get_property(own DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS imported own)
    get_target_property(dirs ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT dirs)
      continue()
    endif()
    set(kept "")
    foreach(dir IN LISTS dirs)
      cmake_path(IS_PREFIX CMAKE_CURRENT_SOURCE_DIR "${dir}" in_source)
      if(target IN_LIST imported)
        set(in_source FALSE)
      endif()
      if(dir MATCHES "\\$<" OR (EXISTS "${dir}" AND NOT in_source))
        list(APPEND kept "${dir}")
      endif()
    endforeach()
    set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
  endforeach()
endfunction()
cmake_language(DEFER CALL _gemma_thor_drop_include_dirs)
