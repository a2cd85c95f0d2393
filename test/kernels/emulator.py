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
    header = (HERE / 'emulator.h').read_text(encoding='utf-8')
    ours = set(re.findall(r'^(?:inline|template).*?(\w+)\(', header, re.MULTILINE))
    blocks = compiler.kernel_source(name).split('\n\n')
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
    headers = ['#include "emulator.h"']
    if 'ARRIVALS_APART' in text:         # all blocks run by turns
        headers.insert(0, '#define ARRIVALS')
    return '\n'.join([*headers, text, 'static void** arguments;', *glue])


class Emulator:
    """Compiles on first use; the shared libraries stay in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[str, ctypes.CDLL] = {}

    def kernel(self, name: str, entry: str | None = None, **constants: int) -> Kernel:
        """Entry `entry` (default: the file's name) of kernels/<name>.cu: f(grid, block, args)."""
        launch = getattr(self._library(name, entry or name, constants), f'launch_{entry or name}')

        def run(grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
            values = [self._argument(arg) for arg in args]
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            launch((ctypes.c_uint32 * 3)(*(*grid, 1, 1)[:3]),
                   (ctypes.c_uint32 * 3)(*(*block, 1, 1)[:3]), pointers)

        return run

    @staticmethod
    def _argument(arg: Any) -> Any:
        if arg is None or isinstance(arg, np.ndarray):
            return ctypes.c_void_p(0 if arg is None else arg.ctypes.data)
        if isinstance(arg, float | np.floating):
            return ctypes.c_float(arg)
        return ctypes.c_int32(arg)

    def _library(self, name: str, entry: str, constants: dict[str, int]) -> ctypes.CDLL:
        source = _source(name, entry)
        defines = [f'-D{key}={value}' for key, value in sorted(constants.items())]
        header = (HERE / 'emulator.h').read_text(encoding='utf-8')
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
