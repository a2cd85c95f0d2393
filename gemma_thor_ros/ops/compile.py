# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""kernels/*.cu -> machine code with NVRTC, kept in a folder on disk; needs no GPU.

Knows sources, options and the compiler; nothing of devices, arrays or launches (device.py). The
tests compile for every architecture with the same code that a robot runs at load.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import util as importlib_util
from pathlib import Path

from gemma_thor_ros import resources
from gemma_thor_ros.schema import ConfigError

# What we compile for: Ampere, Ada, Hopper, and every Blackwell from B200 over Thor to GB10.
ARCHS = ('sm_80', 'sm_86', 'sm_89', 'sm_90a', 'sm_100a', 'sm_103a', 'sm_110a', 'sm_120a',
         'sm_121a')
# The first NVRTC that converts e2m1 to bf16 by one instruction (13.1 refuses it).
_E2M1_TO_BF16_SINCE = (13, 2)
Defines = Mapping[str, int]


class CompileError(Exception):
    """A kernel did not compile; the text is the compiler's."""


@dataclass(frozen=True)
class Compiled:
    """Machine code for one architecture, and what the compiler said about it."""

    cubin: bytes
    log: str


@dataclass(frozen=True)
class KernelSpec:
    """One entry point with the constants that it is compiled with."""

    file: str                            # kernels/<file>.cu
    entry: str
    defines: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, file: str, entry: str | None = None, /, **defines: int) -> KernelSpec:
        """A spec with its constants in a fixed order; entry defaults to the file's name."""
        return cls(file, entry or file, tuple(sorted(defines.items())))


class Nvrtc:
    """The run-time compiler, bound with ctypes. Raises ConfigError where none is installed."""

    def __init__(self) -> None:
        self._library, self.path = _load_nvrtc()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call('nvrtcVersion', ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def compile(self, source: str, name: str, options: tuple[str, ...]) -> Compiled:
        """Compile one source; raises CompileError with the compiler's text."""
        program = ctypes.c_void_p()
        self._call('nvrtcCreateProgram', ctypes.byref(program), source.encode(),
                   f'{name}.cu'.encode(), 0, None, None)
        try:
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), encoded)
            log = self._text(program, 'nvrtcGetProgramLog')
            if status:
                raise CompileError(f'{name}.cu, {" ".join(options)}:\n{log}')
            return Compiled(self._bytes(program, 'nvrtcGetCUBIN'), log)
        finally:
            self._call('nvrtcDestroyProgram', ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f'{getter}Size', program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(getter, program, buffer)
        return buffer.raw

    def _text(self, program: ctypes.c_void_p, getter: str) -> str:
        return self._bytes(program, getter).rstrip(b'\0').decode(errors='replace')

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise CompileError(f'{name} gave error {status}')


def kernel_source(file: str) -> str:
    """The text that is compiled for kernels/<file>.cu: common.cuh, then the file.

    A line `#include "name.cuh"` stands for that file of the same folder.
    """
    return '\n'.join(_pasted(name) for name in ('common.cuh', f'{file}.cu'))


@cache
def _pasted(name: str) -> str:
    text = (resources.folder('kernels') / name).read_text(encoding='utf-8')
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(text.splitlines(), start=1):
        include = re.fullmatch(r'#include "(\w+\.cuh)"', line)
        lines.append(f'{_pasted(include[1])}\n#line {number + 1} "{name}"' if include else line)
    return '\n'.join(lines)


def options_for(arch: str, defines: Defines | tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """The compiler's command line; everything that decides the machine code beside the source."""
    items = sorted(dict(defines).items())
    return (f'--gpu-architecture={arch}', '--std=c++17', '--ptxas-options=-v',
            *(f'-D{name}={value}' for name, value in items))


def converts_e2m1(arch: str, nvrtc_version: tuple[int, int]) -> bool:
    """Whether device and compiler have the e2m1 conversion; else bit tricks do it."""
    return arch_number(arch) >= 100 and nvrtc_version >= _E2M1_TO_BF16_SINCE


def arch_number(arch: str) -> int:
    """'sm_110a' -> 110."""
    match = re.fullmatch(r'sm_(\d+)[af]?', arch)
    assert match, arch
    return int(match[1])


def arch_of(major: int, minor: int) -> str:
    """The target for a device of this compute capability."""
    number = 10 * major + minor
    return f'sm_{number}a' if number >= 90 else f'sm_{number}'


def compile_spec(spec: KernelSpec, arch: str) -> Compiled:
    """Compile without looking at the cache; the log has registers and spills."""
    options = options_for(arch, spec.defines)
    return nvrtc().compile(kernel_source(spec.file), spec.file, options)


def spec_key(spec: KernelSpec, arch: str) -> str:
    """A hash over all that decides the machine code: source, options, compiler."""
    hashed = hashlib.sha256()
    for part in (kernel_source(spec.file), *options_for(arch, spec.defines),
                 '.'.join(map(str, nvrtc().version))):
        hashed.update(part.encode() + b'\0')
    return hashed.hexdigest()


def cached_cubin(spec: KernelSpec, arch: str, folder: Path | None = None) -> Path:
    """The file that holds the machine code; compiles at most once per source, option and compiler.

    The file's name ends with a hash of its content: a cut or changed file is compiled anew.
    """
    folder = folder or cache_folder()
    prefix = f'{spec.entry}-{arch}-{spec_key(spec, arch)[:32]}-'
    for path in sorted(folder.glob(f'{prefix}*.cubin')):
        if path.name == _cubin_name(prefix, path.read_bytes()):
            return path
    cubin = compile_spec(spec, arch).cubin
    path = folder / _cubin_name(prefix, cubin)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix='.part')
        with os.fdopen(handle, 'wb') as file:
            file.write(cubin)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f'the kernel cache {folder} cannot be written: {error}') from error
    return path


def cache_folder() -> Path:
    """Where compiled kernels are kept: $XDG_CACHE_HOME or ~/.cache, below gemma_thor_ros/."""
    base = os.environ.get('XDG_CACHE_HOME', '')
    root = Path(base) if base.startswith('/') else Path.home() / '.cache'
    return root / 'gemma_thor_ros' / 'kernels'


@cache
def nvrtc() -> Nvrtc:
    """The compiler of this process."""
    return Nvrtc()


def _cubin_name(prefix: str, cubin: bytes) -> str:
    return f'{prefix}{hashlib.sha256(cubin).hexdigest()[:16]}.cubin'


def _load_nvrtc() -> tuple[ctypes.CDLL, str]:
    for path in _nvrtc_candidates():
        # NVRTC looks for its builtins by name alone, so the ones beside it are loaded first.
        for builtins in sorted(path.parent.glob('libnvrtc-builtins.so.*')):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        try:
            return ctypes.CDLL(str(path)), str(path)
        except OSError:
            continue
    name = ctypes.util.find_library('nvrtc')
    if name:
        return ctypes.CDLL(name), name
    raise ConfigError('NVRTC, the CUDA run-time compiler, was not found: install the package '
                      'nvidia-cuda-nvrtc or the CUDA toolkit')


def _nvrtc_candidates() -> Iterator[Path]:
    """Newest first: Python packages, then a toolkit in its usual place."""
    spec = importlib_util.find_spec('nvidia')
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        for pattern in ('cu13/lib/libnvrtc.so.13', 'cuda_nvrtc/lib/libnvrtc.so.1?'):
            yield from sorted(folder.glob(pattern), reverse=True)
    for pattern in ('lib64/libnvrtc.so.1?', 'targets/*/lib/libnvrtc.so.1?'):
        yield from sorted(Path('/usr/local/cuda').glob(pattern), reverse=True)
