# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Compile every kernel for every architecture, without a GPU, and keep what came of it.

    python scripts/compile_archs.py            # what differs from the record; rewrites it
    python scripts/compile_archs.py --all      # everything
    python scripts/compile_archs.py --check    # what differs from the record; writes nothing

The record is docs/kernels.json: for each kernel, constants and architecture a hash over source,
options and compiler, registers, shared memory, spills, and the matrix and conversion instructions
found in the machine code. The table in docs/kernels.md is made from it. A spill, an empty entry
or a missing instruction is a failure, unless ALLOWED_SPILLS lists it. Exit code 1 on failure or,
with --check, where the record is stale.
"""
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import util as importlib_util
from pathlib import Path
from typing import Any, NamedTuple

from gemma_thor_ros.models.config import LayerGeometry, ModelConfig
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import gemm_nvfp4, moe_route, rows_nvfp4, stream_nvfp4
from gemma_thor_ros.ops.affine_order import BITS
from gemma_thor_ros.ops.affine_specs import AffineUse, affine_specs
from gemma_thor_ros.ops.compile import ARCHS, KernelSpec
from gemma_thor_ros.ops.draft_specs import dflash_specs, mtp_specs
from gemma_thor_ros.ops.matrix_specs import matrix_specs
from gemma_thor_ros.ops.moe_nvfp4 import dense_parts
from gemma_thor_ros.ops.prefill_specs import image_specs, prefill_specs
from gemma_thor_ros.ops.row_specs import row_specs
from gemma_thor_ros.ops.vision_cuda import vision_specs
from gemma_thor_ros.weights.drafter_presets import drafter_preset_config
from gemma_thor_ros.weights.presets import preset_config

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / 'docs' / 'kernels.json'
TABLE = ROOT / 'docs' / 'kernels.md'
BEGIN, END = '<!-- made by scripts/compile_archs.py -->', '<!-- end -->'
PAGE_SIZE = 32
REGISTERS_PER_MULTIPROCESSOR = 65536
MOST_IN_CHECK = 150                      # compilations of a check: a minute or two
SMALLEST_ENTRY = 24                      # instructions; an empty one has about 8
# Entries that multiply matrices must show it in the machine code.
MATRIX_ENTRIES = ('gemm_nvfp4', 'gemm_affine', 'gemm_bf16', 'gemv_nvfp4', 'gemv_affine',
                  'stream_nvfp4', 'stream_bf16', 'rows_nvfp4', 'head_nvfp4', 'moe_nvfp4_gate_up',
                  'moe_nvfp4_down', 'moe_chain', 'attention_decode', 'attention_append',
                  'attention_window',
                  'prefill_gemm', 'prefill_experts', 'prefill_gemm_bf16', 'prefill_attention',
                  'prefill_attention_wgmma',
                  'draft_attention', 'vision_attention')
BIT_TRICKS = ' by bit tricks'             # after an entry: where e2m1 is not converted
# (entry, architectures) -> most bytes, why.
ALLOWED_SPILLS: dict[tuple[str, tuple[str, ...]], tuple[int, str]] = {
    ('moe_nvfp4_down' + BIT_TRICKS, ('sm_80', 'sm_86', 'sm_89')): (
        136, 'for 16 rows: two tiles of activations in flight for experts of more than 8 gain 3 '
             'to 10 % on an H200, four for others 1 to 2 % of a step, and nothing is spilled '
             'there; 128 registers keep two blocks resident'),
    ('moe_nvfp4_gate_up', ('sm_100a', 'sm_103a', 'sm_110a')): (
        12, 'for 16 rows beside a dense MLP in bf16: 128 registers keep two blocks resident'),
    ('gemm_affine', ('sm_110a',)): (
        32, 'one row of 4,096 columns: 64 registers keep two blocks of 16 warps resident'),
    ('gemm_nvfp4' + BIT_TRICKS, ('sm_110a',)): (
        44, 'takes the place of the conversion only where that fails the self-test; the cuts are '
            'those that are fastest on an H200, which needs a few registers less'),
    ('gemm_bf16', ('sm_120a', 'sm_121a')): (
        48, 'products of 2,816 columns for 16 rows: 80 registers keep two blocks resident; '
            'elsewhere they fit'),
    ('attention_decode_combine', ('sm_80', 'sm_86', 'sm_89')): (
        308, 'the sum of more than 32 chunks, with all of a group requested at once; from sm_90 '
             'on it takes 71 to 79 registers and spills nothing'),
    ('attention_append', ARCHS): (
        48, 'before the wait, of what the prologue keeps; 128 registers keep two blocks resident'),
    ('attention_decode', ARCHS): (
        700, 'four tiles of queries of head dim 256, with a bf16 cache: 128 registers keep two '
             'blocks resident, which takes 9.8 us on an H200 where one block without spills takes '
             '12.5; the default cache, FP8, spills 48 at most'),
}
# Shared memory that a block may ask for, in KB.
SHARED_KB = {'sm_80': 163, 'sm_86': 99, 'sm_89': 99, 'sm_90a': 227, 'sm_100a': 227,
             'sm_103a': 227, 'sm_110a': 227, 'sm_120a': 99, 'sm_121a': 99}
# Of an A100, RTX 3090, RTX 4090, H200, B200, B300, Thor, RTX 5090, GB10.
MULTIPROCESSORS = {'sm_80': 108, 'sm_86': 82, 'sm_89': 128, 'sm_90a': 132, 'sm_100a': 148,
                   'sm_103a': 148, 'sm_110a': 20, 'sm_120a': 170, 'sm_121a': 48}


class Model(NamedTuple):
    """What decides the kernels of a model."""

    hidden_size: int
    intermediate_size: int
    geometries: tuple[LayerGeometry, ...]
    experts: tuple[int, int, int] | None     # E, K, I
    drafters: tuple[str, ...]                # presets
    archs: tuple[str, ...]


def _geometry(q_heads: int, kv_heads: int, head_dim: int, window: int | None,
              has_v: bool) -> LayerGeometry:
    return LayerGeometry('sliding_attention' if window else 'full_attention', q_heads, kv_heads,
                         head_dim, window, 1e4 if window else 1e6,
                         head_dim // 2 if window else head_dim // 8, has_v)


BOTH = ('sm_90a', 'sm_110a')             # where we measure, and what the package is for
MODELS = {
    '26B-A4B': Model(2816, 2112, (_geometry(16, 8, 256, 1024, True),
                                  _geometry(16, 2, 512, None, False)), (128, 8, 704),
                     ('26b-a4b-dflash', '26b-a4b-mtp'), ARCHS),
    '12B': Model(3840, 15360, (_geometry(16, 8, 256, 1024, True),
                               _geometry(16, 1, 512, None, False)), None, (), BOTH),
    '31B': Model(5376, 21504, (_geometry(32, 16, 256, 1024, True),
                               _geometry(32, 4, 512, None, False)), None,
                 ('31b-dflash', '31b-mtp'), BOTH),
    'demo': Model(256, 384, (_geometry(4, 2, 256, 512, True),
                             _geometry(4, 1, 512, None, False)), (8, 2, 128), (), BOTH),
}


SIGHTED = {'26B-A4B': '26b-a4b', '12B': '12b', '31B': '31b'}     # presets with a vision part


def wanted() -> dict[tuple[KernelSpec, str], list[str]]:
    """Every (spec, arch), with the models that use it. sm_110a has both ways to decode e2m1."""
    found: dict[tuple[KernelSpec, str], list[str]] = {}
    for name, model in MODELS.items():
        experts = model.experts and model.experts[:2]
        parts = dense_parts(model.intermediate_size, model.experts[2]) if model.experts else 0
        for arch in model.archs:
            specs = draft_specs(model, arch) + sight_specs(name, model, arch)
            for fp8 in (False, True):
                specs += row_specs(model.hidden_size, model.intermediate_size, model.geometries,
                                   experts, PAGE_SIZE, fp8, parts=parts)
            ways = {compiler.converts_e2m1(arch, compiler.nvrtc().version)}
            for hardware in ways | {False} if arch == 'sm_110a' else ways:
                specs += matrix_specs(model.hidden_size, model.intermediate_size,
                                      model.geometries, model.experts, SHARED_KB[arch] * 1024,
                                      hardware, MULTIPROCESSORS[arch], twins=True)
                for fp8 in (False, True):
                    specs += prefill_specs(model.geometries, experts[0] if experts else 0,
                                           PAGE_SIZE, fp8, SHARED_KB[arch] * 1024, hardware, arch)
            for spec in dict.fromkeys(specs):
                found.setdefault((spec, arch), []).append(name)
    for spec, arch in affine_jobs():
        found.setdefault((spec, arch), []).append('affine')
    for spec, arch in stream_jobs():
        found.setdefault((spec, arch), []).append('streams')
    embedder = VisionConfig.from_dict(preset_config('12b'))
    assert embedder is not None
    for arch in ARCHS:                   # small, and with entries that no tower has
        for spec in vision_specs(embedder):
            found.setdefault((spec, arch), []).append('12B')
    return found


def stream_jobs() -> Iterator[tuple[KernelSpec, str]]:
    """Products of 8 and 16 rows of 2,816 columns as streams, everywhere, served there or not."""
    for arch in ARCHS:
        hardware = compiler.converts_e2m1(arch, compiler.nvrtc().version)
        for rows in (8, 16):
            spec = stream_nvfp4.spec(2816, rows, False, hardware, 512, gemm_nvfp4.cut(2816),
                                     SHARED_KB[arch] * 1024, MULTIPROCESSORS[arch])
            if spec is not None:         # 16 rows do not fit into 99 KB
                yield spec, arch
        yield rows_nvfp4.spec(2816, 8, False, hardware, gemm_nvfp4.cut(2816),
                              **dict(zip(rows_nvfp4.NAMES, (4, 2, 2, 2), strict=True))), arch


def affine_jobs() -> Iterator[tuple[KernelSpec, str]]:
    """MLX affine: the dense models, 4 and 8 bits everywhere, and every width on two of them."""
    rows = (1, 16)
    for name, widths in ('12B', (4,)), ('31B', (4, 8)):
        model = MODELS[name]
        shapes = [(model.hidden_size, model.intermediate_size)]
        for shape in model.geometries:
            heads = shape.num_q_heads + shape.num_kv_heads * (2 if shape.has_v_proj else 1)
            shapes += [(heads * shape.head_dim, model.hidden_size),
                       (model.hidden_size, shape.num_q_heads * shape.head_dim)]
        uses = [AffineUse(*shape, bits, 64, 'plain') for bits in widths for shape in shapes]
        for bits in widths:
            uses += [AffineUse(model.intermediate_size, model.hidden_size, bits, 64, 'geglu'),
                     AffineUse(262144, model.hidden_size, bits, 64, 'head')]
        yield from ((spec, arch) for arch in model.archs
                   for spec in affine_specs(uses, SHARED_KB[arch] * 1024, rows))
    every = [AffineUse(8192, 2816, bits, 64, 'plain') for bits in (4, 8)]
    every += [AffineUse(704, 2816, 4, 64, 'geglu', True),
              AffineUse(2816, 704, 4, 64, 'plain', True),
              AffineUse(262144, 2816, 4, 32, 'head')]
    routers = [moe_route.spec(2816, 128, 8, parts) for parts in (2, 3)]      # 8 bits
    others = [AffineUse(8192, 2816, bits, group, 'plain') for bits, group in zip(
        BITS, (64, 64, 128, 64, 32, 128), strict=True)]
    for arch in ARCHS:
        limit = SHARED_KB[arch] * 1024
        specs = affine_specs(every, limit, rows) + routers
        yield from ((spec, arch) for spec in specs)
        if arch in BOTH:
            yield from ((spec, arch) for spec in affine_specs(others, limit, rows)
                        if spec not in specs)


def draft_specs(model: Model, arch: str) -> list[KernelSpec]:
    """The kernels of a model's drafters."""
    specs: list[KernelSpec] = []
    for preset in model.drafters:
        target = ModelConfig.from_dict(preset_config(preset.rpartition('-')[0]))
        raw = drafter_preset_config(preset)
        if preset.endswith('dflash'):
            specs += dflash_specs(DFlashConfig.from_dict(raw, target), PAGE_SIZE,
                                  SHARED_KB[arch] * 1024)
        else:
            windows = {shape.layer_type: shape.window for shape in model.geometries}
            specs += mtp_specs(MtpConfig.from_dict(raw, target), windows, PAGE_SIZE, True,
                               SHARED_KB[arch] * 1024, compiler.converts_e2m1(
                                   arch, compiler.nvrtc().version))
    return specs


def sight_specs(name: str, model: Model, arch: str) -> list[KernelSpec]:
    """The kernels of a model's vision part, and of its prompts with images."""
    if name not in SIGHTED:
        return []
    raw = preset_config(SIGHTED[name])
    vision, config = VisionConfig.from_dict(raw), ModelConfig.from_dict(raw)
    assert vision is not None
    blocks = [config.image_blocks(shape.layer_type) for shape in model.geometries]
    specs = vision_specs(vision)
    for fp8 in (False, True):
        specs += image_specs(model.geometries, blocks, PAGE_SIZE, fp8, SHARED_KB[arch] * 1024,
                             arch)
    return specs


def key_of(spec: KernelSpec, arch: str) -> str:
    """The name of one compilation in the record."""
    constants = ','.join(f'{name}={value}' for name, value in spec.defines)
    return f'{spec.entry}[{constants}]@{arch}'


def examine(spec: KernelSpec, arch: str) -> dict[str, Any]:
    """Compile once; what the compiler and the machine code say."""
    compiled = compiler.compile_spec(spec, arch)
    found: dict[str, Any] = {'hash': compiler.spec_key(spec, arch)[:32]}
    found |= resources(compiled.log, spec.entry)
    instructions = machine_code(compiled.cubin, spec.entry)
    found['instructions'] = len(instructions)
    found['matrix'] = _first(instructions, r'[HQ]MMA\.\S+|HGMMA\.\S+|UTC\w*MMA\S*')
    found['e2m1'] = _first(instructions, r'F2FP\.\S*E2M1\S*')
    return found


def resources(log: str, entry: str) -> dict[str, int]:
    """Registers, static shared memory, stack and spilled bytes of one entry from ptxas' report."""
    part = re.search(rf"Compiling entry function '{entry}'.*?(?=Compiling entry|\Z)", log, re.S)
    assert part, (entry, log)

    def number(pattern: str) -> int:
        match = re.search(pattern, part[0])
        return int(match[1]) if match else 0

    assert 'bytes spill stores' in part[0] and 'Used' in part[0], part[0]
    return {'registers': number(r'Used (\d+) registers'), 'shared': number(r'(\d+) bytes smem'),
            'stack': number(r'(\d+) bytes stack frame'),
            'spilled': number(r'(\d+) bytes spill stores') + number(r'(\d+) bytes spill loads')}


def machine_code(cubin: bytes, entry: str) -> list[str]:
    """The instructions of one entry, NOPs left out."""
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(_disassembler()), '-c', file.name], check=True,
                              capture_output=True, text=True).stdout
    section = re.search(rf'^\.text\.{entry}:$(.*?)(?=^\s*\.section|\Z)', text, re.M | re.S)
    assert section, entry
    found = re.findall(r'/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)', section[1])
    return [name for name in found if name != 'NOP']


def _disassembler() -> Path:
    spec = importlib_util.find_spec('nvidia')
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder).glob('cu13/bin/nvdisasm'):
            return path
    raise SystemExit('nvdisasm is missing: install nvidia-cuda-nvdisasm (the test extra has it)')


def _first(instructions: list[str], pattern: str) -> str:
    return next((name for name in instructions if re.fullmatch(pattern, name)), '')


def faults(spec: KernelSpec, arch: str, found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one compilation."""
    name = key_of(spec, arch)
    names = [spec.entry]
    if dict(spec.defines).get('E2M1_HARDWARE') == 0:
        names.append(spec.entry + BIT_TRICKS)
    allowed = next((limit for (entry, archs), (limit, _) in ALLOWED_SPILLS.items()
                    if entry in names and arch in archs), 0)
    if found['spilled'] > allowed or (found['stack'] and not found['spilled']):
        yield (f'{name}: {found["spilled"]} bytes spilled, {found["stack"]} of stack; '
               f'{allowed} allowed')
    if found['shared'] > SHARED_KB[arch] * 1024:
        yield f'{name}: {found["shared"]} bytes of shared memory'
    constants = dict(spec.defines)
    warps = constants.get('K_WARPS') or constants.get('WARPS')
    if warps and spec.file in ('gemm_nvfp4', 'gemm_affine', 'gemm_bf16', 'gemv_nvfp4',
                               'gemv_affine', 'stream_bf16', 'head_nvfp4', 'moe_nvfp4',
                               'moe_chain'):
        threads = warps * 32 * constants['MIN_BLOCKS']
        if found['registers'] * threads > REGISTERS_PER_MULTIPROCESSOR:
            yield f'{name}: {found["registers"]} registers do not let its blocks be resident'
    if found['instructions'] < SMALLEST_ENTRY:
        yield f'{name}: only {found["instructions"]} instructions'
    if spec.entry in MATRIX_ENTRIES and not found['matrix']:
        yield f'{name}: no matrix instruction in the machine code'
    if constants.get('E2M1_HARDWARE') and spec.entry != 'fragment_order' and not found['e2m1']:
        yield f'{name}: no e2m1 conversion in the machine code'


def table(record: dict[str, Any]) -> str:
    """The generated part of docs/kernels.md: one line an entry and architecture, 26B-A4B."""
    version = '.'.join(map(str, compiler.nvrtc().version))
    lines = [BEGIN, '', f'NVRTC {version}; {len(record)} compilations. Ranges are over all '
             'constants that the models use.', '',
             '| entry | architecture | registers | static shared memory | spilled bytes '
             '| instructions | matrix instruction | e2m1 |', '|---|---|---|---|---|---|---|---|']
    groups: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for (spec, arch), _ in wanted().items():
        bits = arch == 'sm_110a' and dict(spec.defines).get('E2M1_HARDWARE') == 0
        groups.setdefault((spec.entry, arch, bits), []).append(record[key_of(spec, arch)])
    for (entry, arch, bits), entries in sorted(
            groups.items(), key=lambda item: (item[0][0], ARCHS.index(item[0][1]), item[0][2])):
        def span(field: str, entries: list[dict[str, Any]] = entries) -> str:
            low, high = (pick(e[field] for e in entries) for pick in (min, max))
            return str(low) if low == high else f'{low} to {high}'
        names = [{e[field] for e in entries if e[field]} for field in ('matrix', 'e2m1')]
        lines.append(f'| {entry} | {arch}{" (bit trick)" if bits else ""} | {span("registers")} '
                     f'| {span("shared")} | {span("spilled")} | {span("instructions")} '
                     f'| {" ".join(sorted(names[0]))} | {" ".join(sorted(names[1]))} |')
    for (entry, archs), (limit, reason) in ALLOWED_SPILLS.items():
        lines.append(f'\nAllowed: {entry} on {", ".join(archs)} may spill {limit} bytes: '
                     f'{reason}.')
    return '\n'.join([*lines, END])


def save(record: dict[str, Any]) -> None:
    """Write the record, one line a compilation."""
    lines = ',\n'.join(f'{json.dumps(name)}: {json.dumps(record[name])}'
                       for name in sorted(record))
    RECORD.write_text(f'{{\n{lines}\n}}\n', encoding='utf-8')


def run(check: bool, everything: bool) -> int:
    """Compile what is needed; give the exit code."""
    old = {}
    if RECORD.is_file() and not everything:
        old = json.loads(RECORD.read_text(encoding='utf-8'))
    jobs = list(wanted())
    fresh = {job for job in jobs
             if old.get(key_of(*job), {}).get('hash') == compiler.spec_key(*job)[:32]}
    stale = [job for job in jobs if job not in fresh]
    gone = sorted(set(old) - {key_of(*job) for job in jobs})
    if check and (stale or gone):
        print(f'{RECORD.name} is stale for {len(stale)} compilations and has {len(gone)} that no '
              'model uses: run `make archs`')
        if len(stale) > MOST_IN_CHECK:
            return 1
    record = {key_of(*job): old[key_of(*job)] for job in fresh}
    with ThreadPoolExecutor(2) as pool:
        for number, (job, found) in enumerate(zip(stale, pool.map(
                lambda job: examine(*job), stale), strict=True), start=1):
            record[key_of(*job)] = found
            if sys.stderr.isatty() or number == len(stale):
                print(f'\r{number} of {len(stale)} compiled', end='', file=sys.stderr)
            if not check and number % 50 == 0:
                save(record)             # an interrupted run goes on from here
    print(file=sys.stderr)
    wrong = [fault for job in jobs for fault in faults(*job, record[key_of(*job)])]
    for fault in wrong:
        print(fault)
    if not check:
        save(record)
        text = TABLE.read_text(encoding='utf-8')
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        TABLE.write_text(before + table(record) + after, encoding='utf-8')
    print(f'{len(jobs)} compilations, {len(stale)} made now, {len(wrong)} faults')
    return 1 if wrong or (check and (stale or gone)) else 0


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--check', action='store_true', help='compile only what has changed')
    parser.add_argument('--all', action='store_true', help='compile what has not changed too')
    arguments = parser.parse_args()
    sys.exit(run(arguments.check, arguments.all))
