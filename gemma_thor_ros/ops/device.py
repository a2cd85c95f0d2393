# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One CUDA device: memory, copies, kernels, launches, graphs. CuPy enters here.

CuPy gives memory, streams, graphs and module loading. Launches go through the driver's own call,
because programmatic dependent launch has no door in CuPy. Knows no op and no model. An error after
which the context is of no use any more is a DeviceError.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.schema import ConfigError, DeviceError

_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6    # CUlaunchAttributeID
_SHARED_WITHOUT_ASKING = 48 << 10        # of a block, fixed and dynamic; more has to be requested
_CLUSTER_WITHOUT_ASKING, _LARGE_CLUSTERS = 8, 14         # blocks, CUfunction_attribute
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3       # cudaMemcpyKind
_distrusted: list[str] = []              # why the e2m1 conversion is not used, if it is not
_behind_another: set[int] = set()        # streams whose next launch waits for another stream
_OUT_OF_MEMORY = 2                       # CUDA error numbers that leave the context as it was:
_HARMLESS = {1, _OUT_OF_MEMORY, 98, 701, 900, 901, 902, 903, 904, 905, 906, 907, 908, 909}


class _LaunchAttribute(ctypes.Structure):
    # CUlaunchAttribute: an enum, padding, and a union of 64 bytes of which we set the first ints
    _fields_ = (('id', ctypes.c_int), ('pad', ctypes.c_int), ('value', ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    # CUlaunchConfig
    _fields_ = (
        ('grid', ctypes.c_uint * 3), ('block', ctypes.c_uint * 3),
        ('shared_bytes', ctypes.c_uint), ('stream', ctypes.c_void_p),
        ('attributes', ctypes.POINTER(_LaunchAttribute)), ('num_attributes', ctypes.c_uint))


@dataclass(frozen=True)
class DeviceInfo:
    """What kernels are chosen by."""

    name: str
    arch: str                            # 'sm_90a'
    num_multiprocessors: int
    shared_bytes_per_block: int          # the most that a block may ask for
    l2_bytes: int


class Kernel:
    """A loaded entry point. `registers` and `local_bytes` are what the driver reports."""

    def __init__(self, spec: compiler.KernelSpec, module: Any) -> None:
        self.spec = spec
        self._module = module            # unloads with its last reference
        self._raw = module.get_function(spec.entry)
        self.registers = int(self._raw.num_regs)
        self.local_bytes = int(self._raw.local_size_bytes)
        function = self._raw.kernel
        self.handle = int(getattr(function, 'ptr', 0) or function.handle)
        self._shared_bytes = _SHARED_WITHOUT_ASKING - int(self._raw.shared_size_bytes)
        if dict(spec.defines).get('CLUSTER', 1) > _CLUSTER_WITHOUT_ASKING:
            _driver().cuFuncSetAttribute(ctypes.c_void_p(self.handle), _LARGE_CLUSTERS, 1)

    def allow_shared(self, num_bytes: int) -> None:
        """Let blocks use this much dynamic shared memory."""
        if num_bytes > self._shared_bytes:
            self._raw.max_dynamic_shared_size_bytes = num_bytes
            self._shared_bytes = num_bytes


@cache
def cupy() -> Any:
    """The module CuPy; raises ConfigError where it is not installed."""
    if importlib.util.find_spec('cupy') is None:
        raise ConfigError('the CUDA engine needs CuPy: install gemma-thor-ros[cuda]')
    return importlib.import_module('cupy')


@cache
def info() -> DeviceInfo:
    """The current device of this process."""
    cp = cupy()
    properties = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)
    return DeviceInfo(
        properties['name'].decode(), compiler.arch_of(properties['major'], properties['minor']),
        properties['multiProcessorCount'], properties['sharedMemPerBlockOptin'],
        properties['l2CacheSize'])


def pci_bus_id() -> str:
    """The current device's place, as the driver and its tools name it: '0000:19:00.0'."""
    return str(cupy().cuda.Device().pci_bus_id)


def timed_event() -> Any:
    """An event for elapsed_us; record(stream), synchronize()."""
    return cupy().cuda.Event()


def elapsed_us(start: Any, end: Any) -> float:
    """Microseconds of the device between two timed events, both past."""
    return float(cupy().cuda.get_elapsed_time(start, end)) * 1e3


def has_e2m1_conversion() -> bool:
    """Whether NVFP4 weights are stored and decoded for the device's own e2m1 conversion."""
    return not _distrusted and compiler.converts_e2m1(info().arch, compiler.nvrtc().version)


def distrust_e2m1_conversion() -> None:
    """Decode NVFP4 by bit tricks from now on; before any weight is put in order."""
    _distrusted.append('selftest')


@cache
def compiled(spec: compiler.KernelSpec) -> Kernel:
    """The kernel, compiled or taken from the cache on disk, loaded once a process."""
    path = compiler.cached_cubin(spec, info().arch)
    return Kernel(spec, cupy().RawModule(path=str(path)))


def launch(kernel: Kernel, grid: tuple[int, ...], threads: int, args: tuple[Any, ...],
           stream: Any, shared_bytes: int = 0, *, overlap: bool = True) -> None:
    """Enqueue one launch on a CuPy stream, captured if the stream is being captured.

    args: CuPy arrays, `pinned` ones, None, ints and floats in the entry's order. overlap: the
    kernel may start while the one before it on the stream still runs; it waits inside before it
    reads that one's results (programmatic dependent launch, sm_90 and up). Never right behind
    follow().
    """
    if stream.ptr in _behind_another:
        _behind_another.discard(stream.ptr)
        overlap = False
    kernel.allow_shared(shared_bytes)
    values = [_argument(arg) for arg in args]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    config = _LaunchConfig()
    config.grid[:] = (*grid, 1, 1)[:3]
    config.block[:] = (threads, 1, 1)
    config.shared_bytes = shared_bytes
    config.stream = stream.ptr
    if overlap and compiler.arch_number(info().arch) >= 90:
        attribute = _LaunchAttribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[0] = 1
        config.attributes = ctypes.pointer(attribute)
        config.num_attributes = 1
    status = _driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(kernel.handle),
                                        pointers, None)
    if status:
        raise _failure(status, f'{kernel.spec}, grid {grid}, {threads} threads, {shared_bytes} '
                               'bytes of shared memory')


@cache
def clusters_at_once(kernel: Kernel, size: int, threads: int, shared_bytes: int) -> int:
    """How many clusters of so many blocks this device has room for; 0: it has no clusters.

    Blocks of a cluster lie in one part of the device, so some multiprocessors may be left over.
    """
    kernel.allow_shared(shared_bytes)
    attribute = _LaunchAttribute(id=_CLUSTER_DIMENSION)
    attribute.value[:3] = (size, 1, 1)
    config = _LaunchConfig(shared_bytes=shared_bytes, attributes=ctypes.pointer(attribute),
                           num_attributes=1)
    config.grid[:] = (size * info().num_multiprocessors, 1, 1)
    config.block[:] = (threads, 1, 1)
    found = ctypes.c_int()
    status = _driver().cuOccupancyMaxActiveClusters(
        ctypes.byref(found), ctypes.c_void_p(kernel.handle), ctypes.byref(config))
    return 0 if status else found.value


def capture(stream: Any, enqueue: Callable[[], None]) -> Any:
    """A CuPy graph of what enqueue() puts on the (non-default) stream; nothing of it runs."""
    with stream:
        stream.begin_capture()
        try:
            enqueue()
        finally:
            graph = stream.end_capture()
    return graph


def find() -> str:
    """Why no CUDA device can be used here, or ''."""
    try:
        runtime = cupy().cuda.runtime
        _driver()
    except (ConfigError, ImportError) as error:
        return str(error)
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f'CUDA does not answer: {error}'
    return '' if count else 'there is no CUDA device'


def new_stream() -> Any:
    """A stream that waits for no other."""
    return cupy().cuda.Stream(non_blocking=True)


def follow(stream: Any, other: Any) -> None:
    """Let what comes on `stream` from now on run after all that is on `other` so far.

    While `other` is captured, `stream` is from then on too, until `other` follows it in turn.
    """
    event = new_event()
    event.record(other)
    stream.wait_event(event)
    _behind_another.add(stream.ptr)


def end_overlap(stream: Any) -> None:
    """Let the next launch wait for all that is on a stream: the newest is no launch of ours."""
    _behind_another.add(stream.ptr)


def new_event() -> Any:
    """An event to wait for; record(stream), synchronize()."""
    return cupy().cuda.Event(disable_timing=True)


def zeros(shape: tuple[int, ...] | int, dtype: npt.DTypeLike) -> Any:
    """An array on the device; it is zero when this returns."""
    array = cupy().zeros(shape, dtype)
    cupy().cuda.get_current_stream().synchronize()
    return array


def empty(shape: tuple[int, ...] | int, dtype: npt.DTypeLike) -> Any:
    """An array on the device that holds anything."""
    return cupy().empty(shape, dtype)


def put(array: npt.NDArray[Any]) -> Any:
    """A copy on the device; it is there when this returns."""
    copy = cupy().asarray(np.ascontiguousarray(array))
    cupy().cuda.get_current_stream().synchronize()
    return copy


def is_here(array: Any) -> bool:
    """Whether an array lies on the device already."""
    return not isinstance(array, np.ndarray | np.generic)


def pinned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Host memory that copies and kernels may read and write while the host goes on."""
    memory = cupy().cuda.alloc_pinned_memory(num_bytes)
    return np.frombuffer(memory, np.uint8, num_bytes)


def copy_in(target: Any, source: npt.NDArray[Any], stream: Any) -> None:
    """Enqueue a copy to the device; both contiguous, the source pinned and left alone."""
    assert target.nbytes == source.nbytes, (target.shape, source.shape)
    cupy().cuda.runtime.memcpyAsync(target.data.ptr, source.ctypes.data, source.nbytes,
                                    _TO_DEVICE, stream.ptr)


def copy_out(target: npt.NDArray[Any], source: Any, stream: Any) -> None:
    """Enqueue a copy to the host; both contiguous."""
    assert target.nbytes == source.nbytes, (target.shape, source.shape)
    cupy().cuda.runtime.memcpyAsync(target.ctypes.data, source.data.ptr, source.nbytes, _TO_HOST,
                                    stream.ptr)


def copy_on(target: Any, source: Any, stream: Any) -> None:
    """Enqueue a copy from one place of the device to another; both contiguous."""
    assert target.nbytes == source.nbytes, (target.shape, source.shape)
    cupy().cuda.runtime.memcpyAsync(target.data.ptr, source.data.ptr, source.nbytes, _ON_DEVICE,
                                    stream.ptr)


def memory() -> tuple[int, int]:
    """Bytes that are free, and all of them. Where host and device share memory it is theirs."""
    free, total = cupy().cuda.runtime.memGetInfo()
    return int(free), int(total)


def release_unused() -> None:
    """Give freed memory back to the device."""
    cupy().get_default_memory_pool().free_all_blocks()


class errors:  # noqa: N801 (a context, as contextlib names them)
    """Turn CUDA's errors inside into DeviceError where they stay, else into RuntimeError."""

    def __enter__(self) -> None:         # a generator would cost each step more
        pass

    def __exit__(self, kind: object, error: Any, trace: object) -> None:
        if error is not None and isinstance(error, cupy().cuda.runtime.CUDARuntimeError):
            raise _failure(int(error.status), str(error)) from error


def _failure(status: int, what: str) -> Exception:
    if status in _HARMLESS:
        return RuntimeError(f'CUDA error {status}: {what}')
    return DeviceError(f'CUDA error {status}: {what}')


def _argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, np.ndarray):                    # pinned: the device has the same address
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_void_p(value.data.ptr)


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL('libcuda.so.1')
    except OSError as error:
        raise ConfigError(f'there is no NVIDIA driver on this machine: {error}') from error
