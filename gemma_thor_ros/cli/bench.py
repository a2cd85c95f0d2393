# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor bench`: how fast this device is, with a receipt to share.

Each figure is recorded as soon as it is there, so that a part that fails costs only itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemma_thor_ros import __version__
from gemma_thor_ros.cli import bench_device, bench_draft, bench_tower
from gemma_thor_ros.cli.bench_device import Bench
from gemma_thor_ros.cli.bench_model import random_model
from gemma_thor_ros.cli.bench_records import Records, driver_version
from gemma_thor_ros.load_device import compile_ahead, compile_specs, load_cuda, unfit
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.affine_specs import AffineUse, affine_specs
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.drafter_presets import DRAFTER_PRESETS, drafter_preset_config
from gemma_thor_ros.weights.mlx_modules import MLX_FORMATS, MlxSetting, setting_of
from gemma_thor_ros.weights.presets import PRESETS, preset_config

PARTS = ('decode', 'fp8', 'kv', 'sequences', 'prefill', 'nodes', 'verify', 'draft', 'tower')
_KV_DEPTHS = (4096, 32768, 131072)
_KV_TOKENS = 256
_PROMPTS = (512, 4096, 32768)
LONGEST = _KV_DEPTHS[-1] + _KV_TOKENS + bench_device.CHUNK
_VERIFY_ROWS = (4, 8, 16)
# Of 128 experts; random routing of 16 rows among so many hits about 80, 64 and 32 of them.
_ALLOWED = (123, 76, 33)


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'bench', help='measure this device: decode, verify, prefill, where the time goes',
        description='Measures a model on the CUDA device of this machine, through the whole '
                    'engine. Without --model: random weights of the shapes of --preset, made on '
                    'the device.')
    parser.add_argument('--preset', choices=PRESETS, default='26b-a4b',
                        help='shapes of random weights (default: %(default)s)')
    parser.add_argument('--format', choices=('nvfp4', *MLX_FORMATS), default='nvfp4',
                        metavar='FORMAT', help='of random weights: nvfp4, or one of MLX such as '
                        'mlx-4bit-g64 (default: %(default)s)')
    parser.add_argument('--model', type=Path, metavar='FOLDER',
                        help='a checkpoint in NVFP4 or MLX affine')
    parser.add_argument('--layers', type=int, metavar='N', help='random weights: so many layers')
    parser.add_argument('--parts', default=','.join(PARTS), metavar='A,B',
                        help='what to measure (default: %(default)s)')
    parser.add_argument('--depths', default='256,4096,16384', metavar='N,N',
                        help='tokens before decode starts (default: %(default)s)')
    parser.add_argument('--tokens', type=int, default=2048, help='decoded (default: %(default)s)')
    parser.add_argument('--receipt', type=Path, metavar='FILE', help='write the records here')
    parser.add_argument('--commit', default='unknown', help='for the receipt')
    parser.add_argument('--json', action='store_true', help='print the records as JSON')


def run(args: argparse.Namespace) -> int:
    """Gives 0, or 1 when a part failed; raises ConfigError without a device or for bad words."""
    parts = [part for part in args.parts.split(',') if part]
    wrong = sorted(set(parts) - set(PARTS))
    if wrong:
        raise ConfigError(f'--parts has {", ".join(wrong)}; there are {", ".join(PARTS)}')
    try:
        depths = [int(depth) for depth in args.depths.split(',')]
    except ValueError as error:
        raise ConfigError(f'--depths is {args.depths!r}: numbers with commas between') from error
    reason = device.find()
    if reason:
        raise ConfigError(f'gemma-thor bench needs a CUDA device, but {reason}')
    say: Callable[[str], None] = _quiet if args.json else _say
    info = device.info()
    records = Records(args.receipt, card=info.name, driver=driver_version(), commit=args.commit,
                      nvrtc='.'.join(map(str, compiler.nvrtc().version)), version=__version__,
                      command='gemma-thor ' + ' '.join(sys.argv[1:]))
    bench = _prepare(args, records, say)
    failures = measure(bench, parts, depths, args.tokens, args.preset)
    records.add('rss_mb', [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024], 'MB')
    free, total = device.memory()
    records.add('device_mb', [(total - free) / 2**20], 'MB')
    if args.json:
        sys.stdout.write(json.dumps(records.records) + '\n')
    return 1 if failures else 0


def measure(bench: Bench, parts: list[str], depths: list[int], num_tokens: int,
            preset: str = '') -> int:
    """Run the parts one after the other; how many failed, with the traceback on stderr.

    preset: whose drafters and whose vision part the parts 'draft' and 'tower' imitate.
    """
    work: dict[str, Callable[[], object]] = {
        'decode': lambda: bench_device.decode(bench, depths, num_tokens, 'fp8', True),
        'fp8': lambda: bench_device.decode(bench, depths, 256, 'bf16'),
        'kv': lambda: measure_kv(bench), 'sequences': lambda: measure_sequences(bench),
        'prefill': lambda: measure_prefill(bench),
        'nodes': lambda: bench_device.nodes(bench, (Key(1, 1, 1), Key(16, 1, 16))),
        'verify': lambda: bench_device.verify(bench, _VERIFY_ROWS, _allowed(bench.model), 1024,
                                              'fp8'),
        'draft': lambda: measure_drafts(bench, preset),
        'tower': lambda: bench_tower.measure(bench, preset, os.cpu_count() or 1)}
    failures = 0
    for part in ['bandwidth', *(part for part in PARTS if part in parts)]:
        started = time.perf_counter()
        try:
            (bench.bandwidth if part == 'bandwidth' else work[part])()
        except Exception:  # noqa: BLE001 - the other parts' figures are worth having
            traceback.print_exc()
            failures += 1
        bench.say(f'-- {part}: {time.perf_counter() - started:.1f} s')
    return failures


def measure_drafts(bench: Bench, preset: str) -> None:
    """Both drafters of a preset, in rounds of 4, 8 and 16 rows."""
    raw = {kind: drafter_preset_config(f'{preset}-{kind}') for kind in bench_draft.NUM_DRAFTS
           if f'{preset}-{kind}' in DRAFTER_PRESETS}
    if not raw:
        raise ConfigError(f'there is no drafter for {preset}; drafters: '
                          + ', '.join(DRAFTER_PRESETS))
    bench_draft.measure(bench, raw, _VERIFY_ROWS, _allowed(bench.model), 1024, 'fp8')


def measure_sequences(bench: Bench) -> None:
    """Several sequences together, up to 16."""
    bench_device.sequences(bench, (1, 2, 4, 8, 16), 128, 256, 'fp8')


def measure_prefill(bench: Bench) -> None:
    """Prompts of some lengths, as long as the model goes."""
    room = bench.model.config.max_position_embeddings - bench_device.CHUNK
    bench_device.prefill(bench, [length for length in _PROMPTS if length <= room], 'fp8')


def measure_kv(bench: Bench) -> None:
    """FP8 against bf16 pages, as deep as the model goes, up to 128K."""
    room = bench.model.config.max_position_embeddings - _KV_TOKENS - bench_device.CHUNK
    bench_device.kv_types(bench, [depth for depth in _KV_DEPTHS if depth <= room], _KV_TOKENS)


def _prepare(args: argparse.Namespace, records: Records, say: Callable[[str], None]) -> Bench:
    threads = os.cpu_count() or 1
    started = time.perf_counter()
    value_bytes = 9 / 16
    if args.model is None:
        config = ModelConfig.from_dict(preset_config(args.preset))
        count = compile_ahead(config, bench_device.PAGE_SIZE, 'fp8', threads, lambda share: None)
        setting = setting_of(args.format)
        if setting is not None:
            value_bytes = setting.bits / 8 + 4 / setting.group_size
            count += compile_specs(affine_specs(
                uses_of(config, setting), device.info().shared_bytes_per_block), threads,
                lambda share: None)
        say(f'{count} kernels after {time.perf_counter() - started:.1f} s')
        model = random_model(args.preset, 'fp8', LONGEST, args.layers, setting=setting)
        context = bench_device.context_of(model, f'{args.preset} of random weights', args.format,
                                          args.format)
    else:
        model = _load(args.model, threads, records)
        context, value_bytes = _stored(model, args.model)
    say(f'{records.add("load_s", [time.perf_counter() - started], "s", **context):.1f} s to load '
        f'{context["model"]}')
    return Bench(model, records, context, say, value_bytes=value_bytes)


def uses_of(config: ModelConfig, setting: MlxSetting) -> list[AffineUse]:
    """The matrices of a model that is stored alike throughout."""
    hidden, size = config.hidden_size, (setting.bits, setting.group_size)
    uses = [AffineUse(config.intermediate_size, hidden, *size, 'geglu'),
            AffineUse(hidden, config.intermediate_size, *size, 'plain'),
            AffineUse(config.vocab_size, hidden, *size, 'head')]
    for shape in (config.sliding, config.full):
        uses += [AffineUse(shape.qkv_rows, hidden, *size, 'plain'),
                 AffineUse(hidden, shape.num_q_heads * shape.head_dim, *size, 'plain')]
    if config.enable_moe_block:
        inner = config.moe_intermediate_size
        uses += [AffineUse(inner, hidden, *size, 'geglu', True),
                 AffineUse(hidden, inner, *size, 'plain', True)]
    return uses


def _stored(model: CudaGemma4, folder: Path) -> tuple[dict[str, Any], float]:
    """The context of a checkpoint, and the bytes of its numbers, as its table has them."""
    table = open_checkpoint(folder).text_weights()['embed_tokens']
    if not isinstance(table, AffineWeight):
        return bench_device.context_of(model, folder.name, 'bf16'), 9 / 16
    name = MlxSetting(table.bits, table.group_size).name
    return bench_device.context_of(model, folder.name, name, name), (
        table.bits / 8 + 4 / table.group_size)


def _load(folder: Path, threads: int, records: Records) -> CudaGemma4:
    checkpoint = open_checkpoint(folder)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    weights = checkpoint.text_weights()
    reason = unfit(config, weights, bench_device.PAGE_SIZE)
    if reason:
        raise ConfigError(f'{folder}: {reason}')
    began = time.perf_counter()
    marks: dict[str, float] = {}

    def note(share: float, stage: str) -> None:
        marks.setdefault(stage, time.perf_counter())

    model = load_cuda(config, checkpoint, weights, context_length=min(
        LONGEST, config.max_position_embeddings), page_size=bench_device.PAGE_SIZE,
        kv_dtype='fp8', kv_bytes=0, nvfp4_head=False, graphs=True, num_threads=threads,
        prompt_rows=bench_device.CHUNK, report=note, facts={})
    seconds = time.perf_counter() - marks.get('reading weights', began)
    num_bytes = sum(checkpoint.info(name).nbytes for name in checkpoint.names())
    records.add('load_gb_s', [num_bytes / seconds / 1e9], 'GB/s', bytes=num_bytes)
    return model


def _allowed(model: CudaGemma4) -> tuple[int, ...]:
    return _ALLOWED if model.config.num_experts == 128 else ()


def _say(line: str) -> None:
    sys.stdout.write(line + '\n')
    sys.stdout.flush()


def _quiet(line: str) -> None:
    """Nothing but JSON goes to standard output."""
