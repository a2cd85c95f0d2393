# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where the files that are no Python modules lie: kernels/, config/ and launch/.

In a source tree they are neighbours of the package; installed, they lie in
share/gemma_thor_ros of the prefix that holds the package. This file knows folders alone: it
reads no file but package.xml's presence, and imports nothing of ours.
"""
import pathlib

NAME = 'gemma_thor_ros'


def folder(name: str) -> pathlib.Path:
    """Return the folder `name` ('config', 'kernels' or 'launch') of this package.

    Raises FileNotFoundError, naming the places looked at, when the installation lacks it.
    """
    # A module linked into an environment counts as part of the tree that it is linked to.
    package = pathlib.Path(__file__).resolve().parent
    if (package.parent / 'package.xml').is_file():
        candidates = [package.parent / name]
    else:
        candidates = [prefix / 'share' / NAME / name for prefix in package.parents]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    places = ', '.join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f'{NAME} is installed without its folder {name}/; looked for {places}')
