# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor roofline`: what a device's memory lets a model reach, from bytes alone.

One generated token reads every weight that it uses once, and the keys and values before it: those
bytes over the bandwidth are the floor of a step. Knows config.json and a table of devices; no
weights, no engine, and nothing that was measured with it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.presets import PRESETS, preset_config

NVFP4_BYTES = 9 / 16                     # 4 bits, and 8 for each group of 16
VERIFY_ROWS = 16
DISTINCT = (16, 32, 64, 80, 128)         # experts of a layer that 16 rows hit together
TOKENS_PER_ROUND = (2, 4, 6, 8, 12)


@dataclass(frozen=True)
class Device:
    """Figures of one device; attained_gb_s: what programs, or a kernel that reads, get there."""

    title: str
    datasheet_gb_s: float
    attained_gb_s: float | None
    bf16_tflops: float | None            # dense, with sums in float32
    source: str


DEVICES = {
    'thor': Device('NVIDIA Jetson AGX Thor (T5000)', 273, 200, 258,
                   'bandwidth: datasheet; attained: what other programs were seen to get there; '
                   "bf16: an eighth of the datasheet's 2,070 sparse FP4 TFLOP/s"),
    'h200': Device('NVIDIA H200', 4800, 4500, 790,
                   'bandwidth: datasheet; attained: read of 4 GiB, and the bf16 rate, measured '
                   'on 29 November 2026'),
    'h100': Device('NVIDIA H100 SXM', 3350, None, 990, 'datasheet'),
    'spark': Device('NVIDIA DGX Spark (GB10)', 273, None, None, 'datasheet'),
    'rtx5090': Device('NVIDIA GeForce RTX 5090', 1792, None, None, 'datasheet'),
}
# Weights of the drafter of a model, bf16: five layers of the DFlash drafter of 26B-A4B.
DRAFT_PARAMETERS = {'26b-a4b': 430e6}


@dataclass(frozen=True)
class Parts:
    """Parameters that one generated token uses, by part of the model."""

    attention: int
    dense_mlp: int
    per_layer: int                       # the small models' per-layer projections
    chosen_experts: int                  # of all layers together, K of E
    one_expert: int                      # of all layers
    router: int
    head: int


def count_parts(config: ModelConfig) -> Parts:
    """Parameters of the matrices of a model; norms are too small to count."""
    hidden, attention, dense = config.hidden_size, 0, 0
    for layer in range(config.num_hidden_layers):
        shape = config.geometry(layer)
        q_rows = shape.num_q_heads * shape.head_dim
        rows = shape.qkv_rows if config.kv_layer(layer) == layer else q_rows
        attention += (rows + q_rows) * hidden
        dense += 3 * config.mlp_size(layer) * hidden
    layers, narrow = config.num_hidden_layers, config.hidden_size_per_layer_input
    expert = 3 * config.moe_intermediate_size * hidden * layers
    return Parts(attention, dense, 3 * layers * hidden * narrow, config.top_k_experts * expert,
                 expert, config.num_experts * hidden * layers, config.vocab_size * hidden)


def kv_bytes(config: ModelConfig, depth: int, element_bytes: int) -> int:
    """Bytes of the keys and values that a token at this depth sees in all layers."""
    total = 0
    for layer in range(config.num_hidden_layers):
        shape = config.geometry(layer)
        seen = min(depth, shape.window) if shape.window is not None else depth
        total += seen * 2 * shape.num_kv_heads * shape.head_dim * element_bytes
    return total


def step_bytes(config: ModelConfig, depth: int, kv_element_bytes: int, head_element_bytes: float,
               distinct_experts: int | None = None) -> dict[str, float]:
    """Bytes of one step by part; distinct_experts: of a layer, None: those of one token."""
    parts = count_parts(config)
    experts = (parts.chosen_experts if distinct_experts is None
               else min(distinct_experts, config.num_experts) * parts.one_expert)
    found = {
        'attention projections': parts.attention * NVFP4_BYTES,
        'dense MLP': parts.dense_mlp * NVFP4_BYTES,
        'per-layer embeddings': parts.per_layer * NVFP4_BYTES,
        'experts': experts * NVFP4_BYTES,
        'router': parts.router * 2.0,
        'head': parts.head * head_element_bytes,
        'keys and values': float(kv_bytes(config, depth, kv_element_bytes)),
    }
    return {name: size for name, size in found.items() if size}


def report(config: ModelConfig, device: Device, name: str, depth: int = 256,
           kv_element_bytes: int = 1, head_element_bytes: float = NVFP4_BYTES,
           draft_parameters: float | None = None) -> dict[str, Any]:
    """Everything as plain data; times in ms, sizes in MB (10^6 bytes). Keys are stable."""
    rates = {'datasheet': device.datasheet_gb_s}
    if device.attained_gb_s is not None:
        rates['attained'] = device.attained_gb_s
    plain = step_bytes(config, depth, kv_element_bytes, head_element_bytes)
    parts = count_parts(config)
    result: dict[str, Any] = {
        'model': name, 'device': device.title, 'source': device.source, 'depth': depth,
        'bytes_mb': {part: size / 1e6 for part, size in plain.items()},
        'total_mb': sum(plain.values()) / 1e6,
        'decode': {kind: _speed(sum(plain.values()), rate) for kind, rate in rates.items()},
        'drafted': [], 'prefill': None}
    if device.bf16_tflops is not None:
        # the head is for the last row alone
        weights = (parts.attention + parts.dense_mlp + parts.per_layer + parts.chosen_experts
                   + parts.router)
        result['prefill'] = {'gflop_per_token': 2 * weights / 1e9,
                             'tok_s': device.bf16_tflops * 1e12 / (2 * weights)}
    if draft_parameters is None:
        return result
    draft = draft_parameters * 2 + parts.head * head_element_bytes
    for distinct in DISTINCT if config.num_experts else (0,):
        verify = sum(step_bytes(config, depth, kv_element_bytes, head_element_bytes,
                                distinct).values())
        for kind, rate in rates.items():
            draft_ms, verify_ms = (size / rate / 1e6 for size in (draft, verify))
            result['drafted'].append({
                'distinct_experts': distinct, 'bandwidth': kind, 'draft_ms': draft_ms,
                'verify_ms': verify_ms, 'verify_mb': verify / 1e6,
                'tok_s': {tokens: tokens * 1e3 / (draft_ms + verify_ms)
                          for tokens in TOKENS_PER_ROUND}})
    return result


def _speed(num_bytes: float, gb_s: float) -> dict[str, float]:
    return {'gb_s': gb_s, 'ms': num_bytes / gb_s / 1e6, 'tok_s': gb_s * 1e9 / num_bytes}


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'roofline', help='what the memory of a device lets a model reach',
        description='Bytes of one step by part, and the floor that they set at the bandwidth of '
                    'the datasheet and at what is attained: for plain decoding, and for drafts '
                    'as a function of the tokens that a round keeps and of the experts that its '
                    '16 rows hit. Weights in NVFP4. Ends with 0.')
    parser.add_argument('--device', choices=sorted(DEVICES), default='thor')
    parser.add_argument('--model', default='26b-a4b', metavar='NAME|FOLDER',
                        help='a size that `gemma-thor synth` knows, or a folder with config.json '
                             '(default: %(default)s)')
    parser.add_argument('--depth', type=int, default=256, metavar='TOKENS',
                        help='tokens before the one that is generated (default: %(default)s)')
    parser.add_argument('--kv', choices=('fp8', 'bf16'), default='fp8', help='type of the cache')
    parser.add_argument('--head', choices=('nvfp4', 'bf16'), default='nvfp4')
    parser.add_argument('--draft-parameters', type=float, metavar='N',
                        help='bf16 weights of the drafter (default: known for 26b-a4b)')
    parser.add_argument('--json', action='store_true', help='print as JSON')


def run(args: argparse.Namespace) -> int:
    """Print the table or JSON; ConfigError for a model that is not known or a bad number."""
    if args.depth < 1:
        raise ConfigError(f'--depth is {args.depth}: at least 1 is needed')
    if args.draft_parameters is not None and not args.draft_parameters > 0:
        raise ConfigError(f'--draft-parameters is {args.draft_parameters:g}: it must be above 0')
    config = read_config(args.model)
    drafter = args.draft_parameters or DRAFT_PARAMETERS.get(args.model)
    found = report(config, DEVICES[args.device], args.model, args.depth,
                   1 if args.kv == 'fp8' else 2, NVFP4_BYTES if args.head == 'nvfp4' else 2.0,
                   drafter)
    if args.json:
        print(json.dumps(found))
    else:
        _print(found)
    return 0


def read_config(model: str) -> ModelConfig:
    """The sizes of a preset, or of a folder's config.json; raises ConfigError."""
    path = Path(model) / 'config.json'
    if model in PRESETS:
        return ModelConfig.from_dict(preset_config(model))
    if not path.is_file():
        raise ConfigError(f'--model {model} is neither a folder with config.json nor one of '
                          + ', '.join(PRESETS))
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding='utf-8')))
    except ValueError as error:
        raise ConfigError(f'{path} is not JSON: {error}') from error


def _print(found: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f'{found["model"]} on {found["device"]}, depth {found["depth"]:,}')
    table.add_column('read for one token')
    table.add_column('MB', justify='right')
    for part, size in found['bytes_mb'].items():
        table.add_row(part, f'{size:,.0f}')
    table.add_row('together', f'{found["total_mb"]:,.0f}')
    console.print(table)
    for kind, speed in found['decode'].items():
        console.print(f'plain, {kind} {speed["gb_s"]:,.0f} GB/s: at least {speed["ms"]:.2f} ms a '
                      f'token, at most {speed["tok_s"]:,.0f} tok/s')
    if found['prefill']:
        console.print(f'prompts: {found["prefill"]["gflop_per_token"]:.1f} GFLOP a token, at most '
                      f'{found["prefill"]["tok_s"]:,.0f} tok/s')
    if found['drafted']:
        table = Table(title=f'drafts, one round of {VERIFY_ROWS} rows; at most tok/s by the '
                            'tokens that a round keeps')
        for name in ('experts hit', 'bandwidth', 'draft ms', 'verify ms',
                     *map(str, TOKENS_PER_ROUND)):
            table.add_column(name, justify='right')
        for row in found['drafted']:
            table.add_row(str(row['distinct_experts'] or '-'), row['bandwidth'],
                          f'{row["draft_ms"]:.2f}', f'{row["verify_ms"]:.2f}',
                          *(f'{rate:,.0f}' for rate in row['tok_s'].values()))
        console.print(table)
    console.print(f'Figures of the device: {found["source"]}.', highlight=False)
