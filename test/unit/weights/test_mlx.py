# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""MLX affine packs: the layout against a naive reader, recipes, quantiser, refusals."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights import mlx_bits
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight, to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.mlx_bits import BITS, GROUP_SIZES, pack, quantize_affine, unpack
from gemma_thor_ros.weights.mlx_modules import (
    MLX_FORMATS,
    MlxRecipe,
    MlxSetting,
    mlx_specs,
    setting_of,
)
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.number_formats import bf16_to_float32

from .reference_formats import DTYPES, Tensors, bf16, write_folder

DTYPES.setdefault('U32', 'uint32')
PREFIX = 'language_model.model.'
GOLDENS = Path(__file__).parents[2] / 'data' / 'goldens'


def naive_codes(words: Any, bits: int) -> Any:
    """Codes of rows of words, one at a time: bits k * b up to (k + 1) * b of a long integer."""
    rows = words.reshape(-1, words.shape[-1])
    count = words.shape[-1] * 32 // bits
    codes = []
    for row in rows:
        stream = sum(int(word) << (32 * index) for index, word in enumerate(row))
        codes.append([stream >> (k * bits) & ((1 << bits) - 1) for k in range(count)])
    return np.array(codes).reshape(*words.shape[:-1], count)


def naive_values(words: Any, scales: Any, biases: Any, bits: int) -> Any:
    """scale * q + bias in float64, from the numbers of the scales."""
    codes = naive_codes(words, bits).astype(np.float64)
    size = codes.shape[-1] // scales.shape[-1]
    return np.repeat(scales, size, axis=-1) * codes + np.repeat(biases, size, axis=-1)


def random_module(shape: tuple[int, ...], bits: int, group: int, rng: np.random.Generator,
                  dtype: str = 'BF16') -> Tensors:
    """weight, scales and biases of a module; scales of either sign."""
    *lead, columns = shape
    scales, biases = (rng.standard_normal((*lead, columns // group)) * size
                      for size in (0.1, 0.5))
    stored = {'BF16': bf16, 'F16': np.float16, 'F32': np.float32}[dtype]
    words = rng.integers(0, 1 << 32, (*lead, columns * bits // 32), np.uint32)
    return {'weight': ('U32', words), 'scales': (dtype, stored(scales)),
            'biases': (dtype, stored(biases))}


def expected(tensors: Tensors, bits: int) -> Any:
    words = tensors['weight'][1]
    scales, biases = (
        (bf16_to_float32(data) if kind == 'BF16' else data).astype(np.float64)
        for kind, data in (tensors['scales'], tensors['biases']))
    return naive_values(words, scales, biases, bits)


@pytest.mark.parametrize('bits', BITS)
def test_unpacking_against_a_naive_reader(bits: int) -> None:
    rng = np.random.default_rng(bits)
    words = rng.integers(0, 1 << 32, (3, 2, 4 * bits), np.uint32)
    codes = unpack(words, bits)
    assert np.array_equal(codes, naive_codes(words, bits))
    assert np.array_equal(pack(codes, bits), words)


def test_published_layout_facts() -> None:
    """Words and bytes of the documented packing, and the shapes of a published 4-bit pack."""
    assert unpack(np.array([[0x76543210]], np.uint32), 4).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert unpack(np.array([[0x44332211]], np.uint32), 8).tolist() == [[0x11, 0x22, 0x33, 0x44]]
    assert unpack(np.array([[0b11100100] * 1], np.uint32), 2)[0, :4].tolist() == [0, 1, 2, 3]
    # 3 bits: 8 values in 3 bytes; 5: 8 in 5 bytes; 6: 4 in 3 bytes, lowest bits first
    for bits, count, size in ((3, 8, 3), (5, 8, 5), (6, 4, 3)):
        values = [(7 * k + 3) % (1 << bits) for k in range(count)]
        whole = sum(value << (bits * k) for k, value in enumerate(values))
        row = np.zeros(4 * bits, np.uint8)
        row[:size] = list(whole.to_bytes(size, 'little'))
        assert unpack(row.view('<u4')[None], bits)[0, :count].tolist() == values
    for rows, columns, words, groups in ((704, 2816, 352, 44), (2816, 704, 88, 11)):
        specs = mlx_specs('x', (128, rows, columns), MlxSetting(4, 64))
        assert [spec.shape for spec in specs] == [
            (128, rows, words), (128, rows, groups), (128, rows, groups)]


@cache
def golden() -> dict[str, Any]:
    with np.load(GOLDENS / 'mlx.npz') as arrays:
        return dict(arrays)


def stored(key: str, bits: int, group: int) -> AffineWeight:
    found = golden()
    scales, biases = (DenseWeight(found[f'{key}.{part}'], 'bf16') for part in ('scales', 'biases'))
    return AffineWeight(found[f'{key}.words'], scales, biases, bits, group)


@pytest.mark.parametrize('group', GROUP_SIZES)
@pytest.mark.parametrize('bits', BITS)
def test_what_mlx_itself_writes_and_reads(bits: int, group: int) -> None:
    """Each number to the bit, and its products; goldens by scripts/make_mlx_goldens.py."""
    found, key = golden(), f'{bits}.{group}'
    weight = stored(key, bits, group)
    assert np.array_equal(weight.dequantize(np.float32), found[f'{key}.values'])
    x, theirs = found['x'].astype(np.float64), found[f'{key}.product']
    exact = x @ weight.dequantize(np.float64).T
    terms = np.abs(x) @ np.abs(weight.dequantize(np.float64)).T
    assert (np.abs(theirs - exact) <= 4e-6 * terms).all()
    other = AffineWeight(weight.words[::-1], weight.scales, weight.biases, bits, group)
    assert not np.array_equal(other.dequantize(np.float32), found[f'{key}.values'])


@pytest.mark.parametrize('group', GROUP_SIZES)
@pytest.mark.parametrize('bits', BITS)
def test_our_quantiser_beside_that_of_mlx(bits: int, group: int) -> None:
    """The same scales and biases, and codes that are nowhere further off: MLX rounds them before
    its scales are rounded."""
    found, key = golden(), f'{bits}.{group}'
    source = bf16_to_float32(found[f'{key}.source'])
    ours = quantize_affine(source, bits, group)
    assert np.array_equal(ours.biases, found[f'{key}.biases'])
    tiny = np.abs(bf16_to_float32(found[f'{key}.scales'])) < 1e-6        # of a constant group
    assert np.array_equal(ours.scales[~tiny], found[f'{key}.scales'][~tiny])
    made = AffineWeight(ours.words, DenseWeight(ours.scales, 'bf16'),
                        DenseWeight(ours.biases, 'bf16'), bits, group)
    off = np.abs(made.dequantize(np.float64) - source)
    theirs = np.abs(stored(key, bits, group).dequantize(np.float64) - source)
    assert (off <= theirs + 1e-7).all()
    assert float((off ** 2).sum()) > 0 and (unpack(ours.words, bits) == unpack(
        found[f'{key}.words'], bits)).mean() > 0.3


@pytest.mark.parametrize('mode', ['mxfp4', 'nvfp4', 'mxfp8'])
@pytest.mark.parametrize('told', [True, False])
def test_what_mlx_writes_in_other_modes_is_refused(tmp_path: Path, mode: str, told: bool) -> None:
    """By the mode, or without one in the config by the type of the scales."""
    record = json.loads((GOLDENS / 'mlx.json').read_text())['modes'][mode]

    def plant(tensors: Tensors, recipe: dict[str, Any]) -> None:
        for name in ('weight', 'scales', 'biases'):
            del tensors[f'{PREFIX}layers.0.mlp.up_proj.{name}']
        for name, (dtype, (_, columns)) in record['tensors'].items():
            shape = 192, columns // 2                    # theirs have twice the columns
            tensors[f'{PREFIX}layers.0.mlp.up_proj.{name}'] = (
                dtype[0].upper() + dtype[4:], np.zeros(shape, dtype))
        if told:
            recipe[f'{PREFIX}layers.0.mlp.up_proj'] = {
                'mode': mode, 'bits': record['bits'], 'group_size': record['group_size']}

    assert record['tensors'].keys() == {'weight', 'scales'}
    words = f'up_proj. is in MLX mode {mode}' if told else 'up_proj.scales. is U8, .* another mode'
    with pytest.raises(ConfigError, match=words):
        mixed_pack(tmp_path, plant)[0].text_weights()


@pytest.mark.parametrize('wrong', ['high bits first', 'bytes of a word turned round'])
@pytest.mark.parametrize('bits', BITS)
def test_a_planted_order_is_caught(bits: int, wrong: str) -> None:
    words = np.random.default_rng(bits).integers(0, 1 << 32, (2, 4 * bits), np.uint32)
    if wrong == 'high bits first':
        codes = unpack(words, bits).reshape(2, -1, 8)[..., ::-1].reshape(2, -1)
    else:
        codes = unpack(words.byteswap(), bits)
    assert not np.array_equal(codes, naive_codes(words, bits))


@pytest.mark.parametrize('dtype', ['BF16', 'F16', 'F32'])
@pytest.mark.parametrize('group', GROUP_SIZES)
@pytest.mark.parametrize('bits', BITS)
def test_values(bits: int, group: int, dtype: str) -> None:
    tensors = random_module((2, 3, 128), bits, group, np.random.default_rng(bits), dtype)
    kind: Any = 'bf16' if dtype == 'BF16' else 'f32'
    scales, biases = (DenseWeight(data if dtype == 'BF16' else data.astype(np.float32), kind)
                      for _, data in (tensors['scales'], tensors['biases']))
    weight = AffineWeight(tensors['weight'][1], scales, biases, bits, group)
    exact = expected(tensors, bits)
    assert weight.shape == (2, 3, 128)
    assert np.array_equal(weight.dequantize(np.float64), exact)
    assert np.array_equal(weight.dequantize(np.float32), exact.astype(np.float32))
    assert np.array_equal(weight[1][1:].dequantize(np.float64), exact[1, 1:])


@settings(max_examples=30, deadline=None)
@given(bits=st.sampled_from(BITS), group=st.sampled_from(GROUP_SIZES),
       seed=st.integers(0, 10 ** 6), shift=st.sampled_from([0.0, -1.0, 1.0, 5.0]))
def test_quantiser(bits: int, group: int, seed: int, shift: float) -> None:
    values = np.random.default_rng(seed).standard_normal((4, 128)).astype(np.float32) + shift
    values = values.astype(np.float32)
    codes = quantize_affine(values, bits, group)
    scales, biases = bf16_to_float32(codes.scales), bf16_to_float32(codes.biases)
    decoded = naive_values(codes.words, scales.astype(np.float64), biases.astype(np.float64), bits)
    # half a step; one more at the far end, because zero is made a code; and bf16's roundings
    steps = np.repeat(np.abs(scales), group, axis=1)
    bf16_error = steps * (1 << bits) + np.repeat(np.abs(biases), group, axis=1)
    assert (np.abs(decoded - values) <= 1.5 * steps + 2.0 ** -8 * bf16_error).all()
    assert codes.squared_error == pytest.approx(float(((decoded - values) ** 2).sum()), rel=1e-3,
                                                abs=1e-6)


def test_quantiser_keeps_edges_and_zero_exact() -> None:
    """The larger end is the bias, whose sign decides the scale's; zero is a code."""
    for sign in (1, -1):
        values = np.linspace(-0.5, 1, 32, dtype=np.float32)[None] * sign
        values[0, 5] = 0
        codes = quantize_affine(values, 4, 32)
        assert np.sign(bf16_to_float32(codes.scales)).item() == -sign
        assert bf16_to_float32(codes.biases).item() == sign
        decoded = AffineWeight(codes.words, DenseWeight(codes.scales, 'bf16'),
                               DenseWeight(codes.biases, 'bf16'), 4, 32).dequantize()
        assert decoded[0, 31] == sign
        assert abs(decoded[0, 5]) <= 2.0 ** -8           # the bf16 of the scale
    for constant in (0.0, 0.75):
        codes = quantize_affine(np.full((1, 32), constant, np.float32), 3, 32)
        assert codes.squared_error <= 1e-12


CONFIG: dict[str, Any] = {
    'model_type': 'gemma4',
    'text_config': {
        'model_type': 'gemma4_text', 'vocab_size': 64, 'hidden_size': 128,
        'intermediate_size': 192, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'num_global_key_value_heads': 1, 'head_dim': 16,
        'global_head_dim': 32, 'attention_k_eq_v': True,
        'layer_types': ['sliding_attention', 'full_attention'], 'enable_moe_block': True,
        'num_experts': 3, 'top_k_experts': 2, 'moe_intermediate_size': 64,
        'hidden_size_per_layer_input': 0, 'num_kv_shared_layers': 0,
        'final_logit_softcapping': 30.0}}


def mixed_pack(folder: Path, change: Any = None,
               **stated: Any) -> tuple[Any, dict[str, tuple[Tensors, int]]]:
    """A pack of mixed widths, made by hand; also the modules' tensors and bits."""
    rng = np.random.default_rng(4)
    tensors: Tensors = {}
    modules: dict[str, tuple[Tensors, int]] = {}
    recipe: dict[str, Any] = {'group_size': 64, 'bits': 4, 'mode': 'affine', **stated}
    h, inner, per = 128, 192, 64

    def affine(module: str, shape: tuple[int, ...], bits: int, group: int = 64) -> None:
        made = random_module(shape, bits, group, rng)
        modules[module] = made, bits
        tensors.update({f'{PREFIX}{module}.{name}': tensor for name, tensor in made.items()})
        if (bits, group) != (4, 64):
            recipe[PREFIX + module] = {'bits': bits, 'group_size': group}

    def dense(name: str, *shape: int) -> None:
        tensors[PREFIX + name] = 'BF16', bf16(rng.standard_normal(shape))

    affine('embed_tokens', (64, h), 6)
    dense('norm.weight', h)
    for layer, dim, kv in ((0, 16, 2), (1, 32, 1)):
        at = f'layers.{layer}.'
        affine(at + 'self_attn.q_proj', (4 * dim, h), 4)
        affine(at + 'self_attn.k_proj', (kv * dim, h), 3, 128)
        if layer == 0:
            affine(at + 'self_attn.v_proj', (kv * dim, h), 5, 32)
        affine(at + 'self_attn.o_proj', (h, 4 * dim), 2, 32)
        affine(at + 'mlp.gate_proj', (inner, h), 4)
        affine(at + 'mlp.up_proj', (inner, h), 4)
        affine(at + 'mlp.down_proj', (h, inner), 8)
        affine(at + 'experts.switch_glu.gate_proj', (3, per, h), 4)
        affine(at + 'experts.switch_glu.up_proj', (3, per, h), 3)
        affine(at + 'experts.switch_glu.down_proj', (3, h, per), 6)
        affine(at + 'router.proj', (3, h), 8)
        for name in ('input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
                     'post_feedforward_layernorm', 'post_feedforward_layernorm_1',
                     'post_feedforward_layernorm_2', 'pre_feedforward_layernorm_2'):
            dense(f'{at}{name}.weight', h)
        dense(at + 'self_attn.q_norm.weight', dim)
        dense(at + 'self_attn.k_norm.weight', dim)
        dense(at + 'layer_scalar', 1)
        dense(at + 'router.scale', h)
        dense(at + 'router.per_expert_scale', 3)
    if change is not None:
        change(tensors, recipe)
    config = {**CONFIG, 'quantization': recipe, 'quantization_config': recipe}
    return open_checkpoint(write_folder(folder, config, tensors)), modules


def test_a_mixed_pack(tmp_path: Path) -> None:
    """Every width and group size in one pack, tables and router quantised, experts stacked."""
    checkpoint, modules = mixed_pack(tmp_path)
    weights = checkpoint.text_weights()
    for module, (tensors, bits) in modules.items():
        name = module.replace('.switch_glu', '')
        assert weights.form(name) is Form.MLX
        weight = weights[name]
        assert isinstance(weight, AffineWeight) and weight.bits == bits
        assert np.array_equal(to_float(weight, np.float64), expected(tensors, bits)), name
    words = weights['layers.0.mlp.up_proj'].words
    assert not words.flags.owndata       # a view of the file


@pytest.mark.parametrize(('name', 'change', 'message'), [
    ('mode', {'mode': 'mxfp4'}, 'in MLX mode mxfp4; supported is affine'),
    ('mode', {'mode': 'nvfp4', 'group_size': 16}, 'in MLX mode nvfp4'),
    ('mode', {'mode': 'mxfp8', 'bits': 8, 'group_size': 32}, 'in MLX mode mxfp8'),
    ('mode', {'mode': 'mxfp4', 'bits': 'x', 'group_size': None}, 'in MLX mode mxfp4'),
    ('mode', {'mode': 'int'}, "says mode 'int', bits 4, group_size 64; supported are affine"),
    ('bits', {'bits': 7}, 'bits 7, group_size 64'),
    ('group', {'group_size': 16}, 'group_size 16'),
    ('layers.1.mlp.up_proj', {'bits': 8}, 'has 4 bits in groups of 64, config.json says 8'),
    ('layers.1.mlp.up_proj', False, 'has scales, but config.json says that it is not quantised'),
    ('layers.0.mlp.up_proj', {'mode': 'mxfp8'}, 'layers.0.mlp.up_proj.* in MLX mode mxfp8'),
])
def test_what_the_config_says_must_fit(tmp_path: Path, name: str, change: Any,
                                       message: str) -> None:
    def plant(tensors: Tensors, recipe: dict[str, Any]) -> None:
        if '.' in name:
            recipe[PREFIX + name] = change
        else:
            recipe.update(change)

    with pytest.raises(ConfigError, match=message):
        mixed_pack(tmp_path, plant)[0].text_weights()


@pytest.mark.parametrize(('name', 'tensor', 'message'), [
    ('biases', None, "up_proj.biases' is missing"),
    ('scales', None, "up_proj.scales' is missing"),
    ('weight', None, "up_proj.weight' is missing"),
    ('biases', ('BF16', np.zeros((192, 1), np.uint16)),
     'biases. has shape .192, 1., its scales .192, 2.; they must be equal'),
    ('scales', ('U8', np.zeros((192, 2), np.uint8)),
     r'U8, expected BF16, F16 or F32: another mode of MLX \(mxfp4, nvfp4, mxfp8\)'),
    ('scales', ('BF16', np.zeros((192, 3), np.uint16)), 'shape .192, 3., expected .192. rows of'),
    ('weight', ('U32', np.zeros((192, 17), np.uint32)), r'one of these widths: 8 \(2 bits'),
    ('weight', ('U32', np.zeros((191, 16), np.uint32)), 'shape .191, 16.'),
    ('weight', ('I32', np.zeros((192, 16), np.int32)), 'is I32 of shape'),
])
def test_wrong_tensors_are_named(tmp_path: Path, name: str, tensor: Any, message: str) -> None:
    def plant(tensors: Tensors, recipe: dict[str, Any]) -> None:
        whole = f'{PREFIX}layers.0.mlp.up_proj.{name}'
        if tensor is None:
            del tensors[whole]
        else:
            tensors[whole] = tensor

    with pytest.raises(ConfigError, match=message):
        mixed_pack(tmp_path, plant)[0].text_weights()


def test_overrides_are_found_under_any_prefix() -> None:
    recipe = MlxRecipe({'quantization': {
        'group_size': 64, 'bits': 4, 'language_model.model.layers.0.router.proj': {'bits': 8},
        'model.layers.1.mlp.up_proj': False}})
    assert recipe.of('language_model.model.layers.0.mlp.up_proj') == MlxSetting(4, 64)
    assert recipe.of('model.language_model.layers.0.router.proj') == MlxSetting(8, 64)
    assert recipe.of('layers.1.mlp.up_proj') is False
    assert MlxRecipe({}).of('layers.1.mlp.up_proj') is None
    assert len(MLX_FORMATS) == 18
    assert setting_of('mlx-7bit-g64') is setting_of('bf16') is None


@pytest.mark.parametrize('name', ['mlx-2bit-g32', 'mlx-5bit-g64', 'mlx-8bit-g128'])
@pytest.mark.parametrize('preset', ['tiny-moe', 'tiny-e2b'])
def test_verbs(tmp_path: Path, preset: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Quantise says its own error right; what synth and quantize write is read and served."""
    source, quantised, random = (tmp_path / part for part in ('bf16', 'mlx', 'random'))
    assert main(['synth', str(source), '--preset', preset, '--format', 'bf16', '--json']) == 0
    assert main(['synth', str(random), '--preset', preset, '--format', name, '--json']) == 0
    capsys.readouterr()
    assert main(['quantize', str(source), str(quantised), '--format', name, '--json']) == 0
    report = json.loads(capsys.readouterr().out)
    for folder in (quantised, random):
        assert main(['inspect', str(folder), '--json']) == 0
        assert json.loads(capsys.readouterr().out)['declared_quantization'] == 'mlx'
    dense, packed = (open_checkpoint(folder).text_weights() for folder in (source, quantised))
    names = [n for n in packed if packed.form(n) is Form.MLX]
    assert any(n.endswith('embed_tokens') for n in names) or name.endswith('128')
    setting = setting_of(name)
    assert setting is not None
    for kind in report['kinds']:
        mine = [n for n in names if n.endswith(kind)]
        lost = sum(float(((to_float(packed[n], np.float64) - to_float(dense[n], np.float64)) ** 2
                          ).sum()) for n in mine)
        whole = sum(float((to_float(dense[n], np.float64) ** 2).sum()) for n in mine)
        relative = report['kinds'][kind]['relative_rms']
        assert relative == pytest.approx((lost / whole) ** 0.5, rel=1e-3)
        assert relative < 1.6 * 2.0 ** -setting.bits
    for n in set(packed) - set(names):
        assert np.array_equal(to_float(packed[n]), to_float(dense[n])), n


def test_the_quantiser_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / 'bf16'
    main(['synth', str(source), '--preset', 'tiny-moe', '--format', 'mlx-4bit-g32', '--json'])
    assert main(['quantize', str(source), str(tmp_path / 'x'), '--format', 'mlx-4bit-g64']) == 2
    assert 'already quantised, as mlx affine' in ' '.join(capsys.readouterr().err.split())
    assert main(['quantize', str(source), str(tmp_path / 'x')]) == 2
    assert 'already quantised' in ' '.join(capsys.readouterr().err.split())


def test_row_words_hold_every_width() -> None:
    for bits in BITS:
        for group in GROUP_SIZES:
            words = mlx_bits.row_words(group * 3, bits)
            assert mlx_bits.sizes_of(words, 3, group * 3) == (bits, group)
