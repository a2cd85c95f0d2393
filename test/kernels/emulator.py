# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Compiles a kernel's source as C++ and runs it on the CPU: see emulator.h.

For tests of what a kernel computes where no GPU is: index maps, tails, masks, orders of summation.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops.fetch_ahead import FetchAhead

HERE = Path(__file__).resolve().parent
COMPILER = shutil.which('g++') or shutil.which('c++')
FLAGS = ('-std=c++17', '-O1', '-fPIC', '-shared', '-ffp-contract=off', '-fno-strict-aliasing',
         '-Wno-unknown-pragmas', '-w')
SHARED_BYTES = 232448                    # of one block, as on Hopper
_ENTRY = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\)'
                    r'(?: BLOCKS_OF_CLUSTER)?\s+(\w+)\(([^)]*)\)')

Kernel = Callable[..., None]


def _source(name: str, wanted: str) -> str:
    """The kernel's source without what emulator.h has in C++, and with a door to one entry."""
    source = compiler.kernel_source(name)
    header = '\n'.join((HERE / file).read_text(encoding='utf-8') for file in _headers(source))
    ours = set(re.findall(r'^(?:inline|template).*?(\w+)\(', header, re.MULTILINE))
    blocks = source.split('\n\n')
    theirs = re.compile(r'^__device__ __forceinline__ [\w ]+?(\w+)\(', re.MULTILINE)
    text = '\n\n'.join(block for block in blocks if 'typedef unsigned' not in block
                       and not ours & set(theirs.findall(block)))
    glue = []
    for entry, parameters in _ENTRY.findall(text):
        if entry != wanted:
            continue
        types = [re.sub(r'__restrict__|\w+$', '', parameter.strip())
                 for parameter in parameters.split(',')]
        values = ', '.join(f'*({kind}*)arguments[{i}]' for i, kind in enumerate(types))
        glue.append(f'static void body_{entry}() {{ {entry}({values}); }}\n'
                    f'extern "C" void launch_{entry}(const u32* grid, const u32* threads, '
                    f'void** given) {{\n    arguments = given;\n'
                    f'    run_grid(body_{entry}, grid, threads);\n}}')
    text = re.sub(r'extern __shared__ (.*)\[\];', rf'__shared__ \1[{SHARED_BYTES}];', text)
    headers = [f'#include "{header}"' for header in _headers(text)]
    if 'ARRIVALS_APART' in text:         # all blocks run by turns
        headers.insert(0, '#define ARRIVALS')
    return '\n'.join([*headers, text, 'static void** arguments;', *glue])


def _headers(text: str) -> list[str]:
    """emulator.h, and what only some kernels need."""
    return ['emulator.h'] + ['emulator_fetch.h'] * ('struct FetchAhead' in text)


class Emulator:
    """Compiles on first use; the shared libraries stay in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[str, ctypes.CDLL] = {}
        self.fetched: list[tuple[int, int]] = []     # (address, bytes) that the last launch with
                                                     # anything to fetch ahead asked for

    def kernel(self, name: str, entry: str | None = None, **constants: int) -> Kernel:
        """Entry `entry` (default: the file's name) of kernels/<name>.cu: f(grid, block, args)."""
        library = self._library(name, entry or name, constants)
        launch = getattr(library, f'launch_{entry or name}')

        def run(grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
            values = [self._argument(arg) for arg in args]
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            asked = [arg for arg in args if isinstance(arg, FetchAhead)]
            for ahead in asked:
                _allow(library, ahead.arrays)
            launch((ctypes.c_uint32 * 3)(*(*grid, 1, 1)[:3]),
                   (ctypes.c_uint32 * 3)(*(*block, 1, 1)[:3]), pointers)
            for ahead in asked:
                pieces = _fetched(library)
                assert library.num_stray_fetches() == 0, f'{entry or name} fetches beyond arrays'
                if ahead.arrays:
                    self.fetched = pieces

        return run

    @staticmethod
    def _argument(arg: Any) -> Any:
        if isinstance(arg, ctypes.Structure):
            return arg
        if arg is None or isinstance(arg, np.ndarray):
            return ctypes.c_void_p(0 if arg is None else arg.ctypes.data)
        if isinstance(arg, float | np.floating):
            return ctypes.c_float(arg)
        return ctypes.c_int32(arg)

    def _library(self, name: str, entry: str, constants: dict[str, int]) -> ctypes.CDLL:
        source = _source(name, entry)
        defines = [f'-D{key}={value}' for key, value in sorted(constants.items())]
        header = '\n'.join((HERE / file).read_text(encoding='utf-8') for file in _headers(source))
        key = hashlib.sha256('\n'.join([header, source, *defines, *FLAGS]).encode()).hexdigest()
        if key not in self._libraries:
            path = self._folder / f'{name}-{key[:24]}.so'
            if not path.exists():
                assert COMPILER is not None
                text = path.with_suffix('.cpp')
                text.write_text(source, encoding='utf-8')
                part = path.with_suffix('.part')
                subprocess.run([COMPILER, *FLAGS, f'-I{HERE}', *defines, '-o', str(part),
                                str(text)], check=True)
                part.rename(path)
            self._libraries[key] = ctypes.CDLL(str(path))
        return self._libraries[key]


def _allow(library: ctypes.CDLL, arrays: Sequence[Any]) -> None:
    """Tell a library what may be fetched ahead; it forgets what has been."""
    bounds = [bound for array in arrays
              for bound in (array.ctypes.data, array.ctypes.data + array.nbytes)]
    library.allow_fetches((ctypes.c_uint64 * len(bounds))(*bounds), len(arrays))


def _fetched(library: ctypes.CDLL) -> list[tuple[int, int]]:
    room = (ctypes.c_uint64 * (2 * library.num_fetches()))()
    library.copy_fetches(room)
    return list(zip(room[::2], room[1::2], strict=True))
