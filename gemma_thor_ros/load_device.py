# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which device a model runs on, and its load onto a CUDA device: load.py's hand for it.

Knows no settings' names and no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, Literal, cast

from gemma_thor_ros.load_drafter import FoundDrafter, device_drafter
from gemma_thor_ros.load_vision import FoundVision
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_draft import CudaDrafter
from gemma_thor_ros.models.cuda_inputs import BUCKETS, PROMPT_BUCKETS, Key
from gemma_thor_ros.models.cuda_step import CudaGemma4, CudaKvDtype
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device, selftest
from gemma_thor_ros.ops.affine_specs import AffineUse, affine_specs
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.draft_specs import dflash_specs, mtp_specs
from gemma_thor_ros.ops.gemm_affine import Form as AffineForm
from gemma_thor_ros.ops.matrix_specs import bf16_specs, matrix_specs
from gemma_thor_ros.ops.moe_nvfp4 import dense_parts
from gemma_thor_ros.ops.prefill_specs import image_specs, prefill_specs
from gemma_thor_ros.ops.row_specs import row_specs
from gemma_thor_ros.ops.vision_cuda import vision_specs
from gemma_thor_ros.prompt_images import VisionInfo
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight
from gemma_thor_ros.weights.checkpoint import Checkpoint, TextWeights
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.streaming import StreamedWeights, quantised_table
from gemma_thor_ros.weights.vision import VisionWeights

_log = logging.getLogger(__name__)

DeviceName = Literal['cpu', 'cuda']
Report = Callable[[float, str], None]
COMPILING, TRYING = SETTING_UP = 'compiling kernels', 'trying the kernels'      # first stages
_RESERVE_BYTES = 512 << 20               # for kernels, graphs and the driver's own
_BLIND = FoundVision(VisionInfo())


def choose_device(asked: str, config: ModelConfig, weights: TextWeights, page_size: int,
                  ) -> DeviceName:
    """'cpu' or 'cuda' for engine.device 'auto', 'cpu' or 'cuda'.

    Raises ConfigError with the reason where CUDA is asked for and this machine or the kernels
    can't run the model; 'auto' then takes the CPU.
    """
    if asked == 'cpu':
        return 'cpu'
    # the model's own reason first: no driver and no CuPy would help against it
    reason = unfit(config, weights, page_size) or device.find()
    if not reason:
        return 'cuda'
    if asked == 'cuda':
        raise ConfigError(f'engine.device is cuda, but {reason}')
    _log.info('the model runs on the CPU: %s', reason)
    return 'cpu'


def unfit(config: ModelConfig, weights: TextWeights, page_size: int) -> str:
    """Why the CUDA kernels can't run a model, or ''."""
    if config.num_kv_shared_layers or config.hidden_size_per_layer_input:
        return 'models with shared K and V or per-layer embeddings (E2B, E4B) run on the CPU alone'
    for shape in (config.sliding, config.full):
        if not config.layers_of(shape.layer_type):
            return f'the model has no {shape.layer_type} layers; the kernels expect both types'
        if shape.head_dim not in (256, 512) or shape.group > 16 or shape.num_rotary_pairs % 8:
            return (f'{shape.layer_type} layers have head_dim {shape.head_dim} and {shape.group} '
                    'query heads per kv head; the kernels take head_dim 256 or 512 and at most 16')
    if page_size % 16:
        return f'engine.page_size is {page_size}; the kernels take multiples of 16'
    if config.hidden_size % 32 or config.vocab_size % 16 or config.num_experts % 8:
        return (f'hidden_size is {config.hidden_size}, vocab_size {config.vocab_size} and '
                f'num_experts {config.num_experts}; the kernels take multiples of 32, 16 and 8')
    dense = [name for name in weights if '.experts.' in name
             and weights.form(name) in (Form.DENSE, Form.FUSED, Form.STACKED)]
    if dense:
        return (f'{dense[0]} is not quantised: experts run in NVFP4 or MLX affine, `gemma-thor '
                'quantize` makes such a checkpoint')
    half = weights.half_scales()
    if half:
        return f'{half} is float16; scales and biases of MLX affine have to be bfloat16 there'
    return ''


def load_cuda(config: ModelConfig, checkpoint: Checkpoint, weights: TextWeights, *,
              context_length: int, page_size: int, kv_dtype: CudaKvDtype, kv_bytes: int,
              nvfp4_head: bool, graphs: bool, num_threads: int, prompt_rows: int,
              report: Report, facts: dict[str, Any],
              vision: FoundVision = _BLIND) -> CudaGemma4:
    """Compile what is not in the cache, and stream the weights to the device.

    kv_bytes: what the pages will need; facts takes what was found of the device; vision: the part
    that reads images. Raises ConfigError when pages and weights do not fit in the device's free
    memory, for unfit weights, and where a kernel is wrong on this device.
    """
    source = StreamedWeights(checkpoint, weights,
                             lambda share: report(0.2 + 0.7 * share, 'reading weights'))
    free, total = device.memory()
    needed = source.num_bytes + vision.device_bytes + kv_bytes + _RESERVE_BYTES
    if needed > free:
        sight = (f', {vision.device_bytes / 2**30:.2f} GiB for images' if vision.device_bytes
                 else '')
        raise ConfigError(
            f'weights of {source.num_bytes / 2**30:.2f} GiB{sight} and KV pages of '
            f'{kv_bytes / 2**30:.2f} GiB need {needed / 2**30:.2f} GiB on the device; '
            f'{free / 2**30:.2f} of its {total / 2**30:.2f} GiB are free: lower engine.kv_memory, '
            'or end what else uses it')
    sizes = None if vision.part is None else vision.part[0]
    compile_ahead(config, page_size, kv_dtype, num_threads,
                  lambda share: report(0.2 * share, COMPILING), sizes)
    uses = affine_uses(weights) + (affine_uses(vision.part[1]) if vision.part else [])
    limit = device.info().shared_bytes_per_block
    compile_specs(affine_specs(uses, limit) + bf16_specs(bf16_shapes(weights), limit), num_threads,
                  lambda share: None)
    stream = device.new_stream()
    with device.errors():
        report(0.2, TRYING)
        facts['e2m1'] = _try_kernels(stream)

    loader = DeviceLoader(stream, num_threads=num_threads,
                          quantize_head=_head_in_nvfp4(num_threads) if nvfp4_head else None)
    with device.errors():
        model = CudaGemma4(config, cast(Any, source), loader, stream=stream,
                           context_length=context_length, kv_dtype=kv_dtype, graphs=graphs,
                           prompt_rows=max(prompt_rows, vision.info.soft_tokens),
                           vision=cast(Any, vision.part))
    source.close()
    _log.info('%s holds %.2f GiB of weights', device.info().name, loader.device_bytes / 2**30)
    return model


def affine_uses(weights: TextWeights | VisionWeights) -> list[AffineUse]:
    """What the MLX affine matrices of a checkpoint are for."""
    uses = []
    for name in weights:
        if weights.form(name) is not Form.MLX or name.endswith(
                ('router.proj', 'k_proj', 'v_proj')):
            continue
        stem, is_q, _ = name.partition('self_attn.q_proj')
        names = [f'{stem}self_attn.{part}_proj' for part in 'qkv'] if is_q else [name]
        parts = [cast(AffineWeight, weights[part]) for part in names if part in weights]
        form: AffineForm = ('head' if name == 'embed_tokens' else 'geglu' if name.endswith(
            ('.gate_proj', '.up_proj')) else 'plain')
        for (bits, size), alike in groupby(parts, lambda part: (part.bits, part.group_size)):
            stacked = list(alike)
            uses.append(AffineUse(sum(part.shape[-2] for part in stacked), stacked[0].shape[-1],
                                  bits, size, form, '.experts.' in name))
    return uses


def bf16_shapes(weights: TextWeights) -> dict[str, tuple[int, ...]]:
    """The matrices of the layers that a checkpoint left in bf16, but for the routers'."""
    return {name: weights[name].shape for name in weights
            if name.endswith('_proj') and weights.form(name) is Form.DENSE}


def load_drafter(found: FoundDrafter, model: CudaGemma4, *, context_length: int, page_size: int,
                 nvfp4_head: bool, num_threads: int) -> CudaDrafter:
    """Compile what a drafter needs besides, and stream its weights to the model's device.

    nvfp4_head: for an assistant's own head.
    """
    compile_specs(drafter_specs(found.config, model.config, page_size, model.kv_dtype),
                  num_threads, lambda share: None)
    with device.errors():
        drafter = device_drafter(
            found.config, found.weights, model, context_length=context_length,
            quantize_head=_head_in_nvfp4(num_threads) if nvfp4_head else None)
    _log.info('%s: the %s drafter runs on the device too', device.info().name, drafter.config.name)
    return drafter


def drafter_specs(config: DFlashConfig | MtpConfig, target: ModelConfig, page_size: int,
                  kv_dtype: CudaKvDtype) -> list[KernelSpec]:
    """The kernels of a drafter on this device."""
    shared_limit = device.info().shared_bytes_per_block
    if isinstance(config, DFlashConfig):
        return dflash_specs(config, page_size, shared_limit, BUCKETS)
    windows = {shape.layer_type: shape.window for shape in (target.sliding, target.full)}
    return mtp_specs(config, windows, page_size, kv_dtype == 'fp8', shared_limit,
                     device.has_e2m1_conversion())


def _head_in_nvfp4(num_threads: int) -> Callable[[Any], Any]:
    def head(table: Any) -> Any:
        assert isinstance(table, DenseWeight), type(table)
        return quantised_table(table, num_threads)

    return head


def _try_kernels(stream: Any) -> str:
    """How e2m1 is decoded here; at the first load on a device every op is tried."""
    outcome = selftest.settle(stream)
    if outcome.wrong:
        raise ConfigError(
            f'{device.info().name} gives wrong results in '
            + ', '.join(f'{check.op} (error {check.error:.1e})' for check in outcome.wrong)
            + '; `gemma-thor selftest` shows all, engine.device cpu runs without it')
    if outcome.e2m1 != 'hardware' and compiler.converts_e2m1(
            device.info().arch, compiler.nvrtc().version):
        _log.warning('%s converts e2m1 wrongly: bit tricks do it instead', device.info().name)
    return outcome.e2m1


def compile_ahead(config: ModelConfig, page_size: int, kv_dtype: CudaKvDtype, num_threads: int,
                  progress: Callable[[float], None], vision: VisionConfig | None = None) -> int:
    """Fill the kernel cache with what the model needs, several at a time; how many there are."""
    specs = text_specs(config, page_size, kv_dtype)
    if vision is not None:
        specs += sight_specs(config, vision, page_size, kv_dtype)
    return compile_specs(specs, num_threads, progress)


def text_specs(config: ModelConfig, page_size: int, kv_dtype: CudaKvDtype) -> list[KernelSpec]:
    """The kernels of every step without images, of NVFP4 weights and any number of rows."""
    geometries = (config.sliding, config.full)
    moe = config.enable_moe_block
    limit, hardware = device.info().shared_bytes_per_block, device.has_e2m1_conversion()
    specs = row_specs(config.hidden_size, config.intermediate_size, geometries,
                      (config.num_experts, config.top_k_experts) if moe else None, page_size,
                      kv_dtype == 'fp8', BUCKETS,
                      dense_parts(config.intermediate_size, config.moe_intermediate_size)
                      if moe else 0)
    specs += matrix_specs(
        config.hidden_size, config.intermediate_size, geometries,
        (config.num_experts, config.top_k_experts, config.moe_intermediate_size) if moe else None,
        limit, hardware, device.info().num_multiprocessors)
    return specs + prefill_specs(geometries, config.num_experts, page_size, kv_dtype == 'fp8',
                                 limit, hardware, device.info().arch)


def sight_specs(config: ModelConfig, vision: VisionConfig, page_size: int,
                kv_dtype: CudaKvDtype) -> list[KernelSpec]:
    """The kernels that images need: of the vision part, and of prompts with images."""
    geometries = (config.sliding, config.full)
    blocks = [config.image_blocks(shape.layer_type) for shape in geometries]
    return vision_specs(vision) + image_specs(geometries, blocks, page_size, kv_dtype == 'fp8',
                                              device.info().shared_bytes_per_block,
                                              device.info().arch)


def compile_specs(specs: list[KernelSpec], num_threads: int,
                  progress: Callable[[float], None]) -> int:
    """Fill the kernel cache, several at a time; how many there are."""
    specs = list(dict.fromkeys(specs))
    arch = device.info().arch
    compiler.cache_folder().mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(num_threads) as pool:
        for done, _ in enumerate(pool.map(
                lambda spec: compiler.cached_cubin(spec, arch), specs), 1):
            progress(done / len(specs))
    return len(specs)


def warm_keys(max_sequences: int, prompt_rows: int) -> list[Key]:
    """Sizes of the steps that most answers are made of: a short prompt, then a row of each."""
    return [*(Key(size, size, 1) for size in BUCKETS if size < 2 * max_sequences),
            *(Key(size, 1, size, True) for size in PROMPT_BUCKETS if size <= prompt_rows)]
