# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the bits of K and V depend on besides the tokens: load.py's name for a saved cache.

Two engines with equal identities compute equal K and V. Knows no settings' names and no engine.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import numpy as np
import threadpoolctl  # type: ignore[import-untyped]

from gemma_thor_ros import __version__, resources
from gemma_thor_ros.load_drafter import FoundDrafter
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device
from gemma_thor_ros.text.identity import template_hash
from gemma_thor_ros.weights.fingerprint import sampled_hash


def kv_identity(folder: Path, kv_dtype: str, device_name: str, variant: str,
                drafter: FoundDrafter | None) -> dict[str, str]:
    """Return the identity, a value for each thing that is compared and named when it differs."""
    return {
        'engine': __version__,
        'weights': sampled_hash(folder),
        'template': template_hash(variant),
        'kv_dtype': kv_dtype,
        'drafter': 'none' if drafter is None else drafter.config.name,
        'numerics': _cuda() if device_name == 'cuda' else _cpu(),
    }


def _cuda() -> str:
    """The architecture, the compiler and the sources of the kernels."""
    digest = hashlib.sha256()
    for path in sorted(resources.folder('kernels').glob('*.cu*')):
        digest.update(path.name.encode() + path.read_bytes())
    version = '.'.join(map(str, compiler.nvrtc().version))
    return f'{device.info().arch}, NVRTC {version}, kernels {digest.hexdigest()[:16]}'


def _cpu() -> str:
    """The library of the matrix products and the kind of processor that it chose its code for."""
    found = [f'{pool.get("internal_api")} {pool.get("version")} {pool.get("architecture", "")}'
             for pool in threadpoolctl.threadpool_info() if pool.get('user_api') == 'blas']
    return ', '.join([platform.machine(), f'NumPy {np.__version__}', *sorted(set(found))])
