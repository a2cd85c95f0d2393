# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Choose one token per logit row: bias, masks, penalties, temperature, filters, keyed Gumbel-max.

    token = argmax over kept ids of  z[id] + gumbel(bits(seed, choice, position, id))

with z = (logit - max) / temperature. A token is a function of its row and its key alone, so it
does not depend on the rows beside it, on the step that computes it or on the order of draws.
Called by engine/runner.py. Knows no request, no sequence and no text.

Equal bits in NumPy and CUDA by construction:
- every float operation is one IEEE float32 add, subtract, multiply or divide, each rounded on its
  own (in CUDA `__fadd_rn` and friends; a fused multiply-add would round once and differ);
- logarithm and exponential are the polynomials below, never a library's;
- the noise is a 64-bit integer hash of the key (wrapping uint64 arithmetic);
- probabilities are summed as integers in units of 2**-40 of the largest, so that every order of
  summation gives the same bits;
- all choices follow one total order: larger value first, then lower id.

Order of the settings: logit bias, suppressed ids and mask, repetition penalty, frequency and
presence penalties, temperature, top-k, top-p (of what top-k left), min-p, noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

_F = np.float32
_U = np.uint64
_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15             # 2**64 / golden ratio, odd (Weyl step of splitmix64)
_MIX_1 = 0xBF58476D1CE4E5B9              # splitmix64's finaliser (Stafford's variant 13)
_MIX_2 = 0x94D049BB133111EB
_NO_IDS: Int64 = np.zeros(0, np.int64)
_NO_VALUES: Float32 = np.zeros(0, np.float32)
_NO_LISTS = np.zeros(1, np.int32), np.zeros(1, np.float32)
_LOWEST_MASS = np.float32(-28.0)          # exp(-28) < 2**-40
_LOWEST_WINNER = np.float32(-49.0)        # noise lies in -3.8 .. 44.4
_SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
_LARGEST_TEMPERATURE = float(np.finfo(np.float32).max)

RUN = 256                                # ids whose largest value the device keeps
MAX_FAST_K = 256                         # top-k without a search for its cut
TURNS, RESULT_ROWS = 4, 16               # of results: steps and rows; as in sample_math.cuh
_STAGES, _BINS, _STATE_WORDS = 6, 2048, 5      # of kernels/sample_math.cuh
_ENTRIES = (('sample', 'sample_adjust'), ('sample', 'sample_max'), ('sample', 'sample_spread'),
            ('sample_search', 'sample_search'), ('sample_search', 'sample_gather'),
            ('sample', 'sample_pick'))
_ERRORS = {-1: 'the logits hold NaN', -2: 'every token id is masked',
           -3: 'the logits hold infinity'}
# struct Settings of kernels/sample_math.cuh
_RECORD = np.dtype([
    ('top_p', 'f8'), ('seed', 'u8'), ('temperature', 'f4'), ('min_p', 'f4'), ('repetition', 'f4'),
    ('presence', 'f4'), ('frequency', 'f4'), ('top_k', 'i4'), ('choice', 'i4'), ('position', 'i4'),
    ('bias', 'i4', 2), ('suppress', 'i4', 2), ('seen', 'i4', 2), ('counted', 'i4', 2),
    ('mask', 'i4'), ('turn', 'i4')])
RECORD_BYTES = _RECORD.itemsize
_FIELDS: Any = _RECORD.fields
POSITION_BYTE, TEMPERATURE_BYTE = _FIELDS['position'][1], _FIELDS['temperature'][1]
TURN_BYTE = _FIELDS['turn'][1]


class SampleError(ValueError):
    """A row has no token to choose: it holds NaN, or every id is masked."""


@dataclass(frozen=True, eq=False)
class SampleSettings:
    """What stays the same for all tokens of one request; fields as in schema.SamplingParams.

    Equal to itself alone: what is worked out for a request's settings is kept with them.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0                        # 64 bits
    choice: int = 0                      # 32 bits
    bias_ids: Int64 = field(default_factory=lambda: _NO_IDS)
    bias_values: Float32 = field(default_factory=lambda: _NO_VALUES)


@dataclass(frozen=True)
class SampleRow:
    """One row to choose a token for: the settings, the key's position and the token history.

    `position` is the absolute position that the new token takes. All id arrays hold each id once.
    """

    settings: SampleSettings
    position: int
    suppress_ids: Int64 = field(default_factory=lambda: _NO_IDS)
    seen_ids: Int64 = field(default_factory=lambda: _NO_IDS)       # prompt and generated
    counted_ids: Int64 = field(default_factory=lambda: _NO_IDS)    # generated only
    counts: Float32 = field(default_factory=lambda: _NO_VALUES)    # how often, per counted id
    allowed: Bool | None = None                                    # (V,); None: all


def sample_ref(logits: npt.NDArray[Any], rows: Sequence[SampleRow]) -> Int32:
    """Choose one token id per row: (R, V) logits, R rows -> (R,) int32.

    Logits of another type are rounded to float32 once. Raises SampleError (see `sample_row`).
    """
    tokens = [sample_row(logits[r], row) for r, row in enumerate(rows)]
    return np.array(tokens, np.int32)


def sample_row(logits: npt.NDArray[Any], row: SampleRow) -> int:
    """Choose the token of one row: (V,) logits -> id.

    Temperature 0 (or one below float32's normal range) takes the largest logit, the lowest id
    among equals. Raises SampleError for NaN logits and when no id is left.
    """
    settings = row.settings
    values = _adjusted(logits.astype(np.float32, copy=False), row)
    best = int(values.argmax())          # the first of equals; NaN if there is any
    top = values[best]
    if not top > -np.inf:
        raise SampleError(_ERRORS[-1 if np.isnan(top) else -2])
    if settings.temperature < _SMALLEST_TEMPERATURE:
        return best
    if top == np.inf:
        raise SampleError(_ERRORS[-3])
    with np.errstate(over='ignore'):     # a tiny temperature sends the others to -infinity
        z = (values - top) / _F(min(settings.temperature, _LARGEST_TEMPERATURE))
    # Far below the best (z = 0) an id has no mass in top-p's units, and can't win by noise alone
    ids = np.flatnonzero(z >= (_LOWEST_MASS if settings.top_p < 1.0 else _LOWEST_WINNER))
    if 0 < settings.top_k < ids.size:
        ids = ids[_top_k(values[ids], settings.top_k)]
    z = z[ids]
    if settings.top_p < 1.0:
        kept = _top_p(values[ids], z, settings.top_p)
        ids, z = ids[kept], z[kept]
    if settings.min_p > 0.0:
        likely = fixed_exp(z) >= _F(settings.min_p)
        ids, z = ids[likely], z[likely]
    if ids.size == 1:
        return int(ids[0])
    bits = noise_bits(settings.seed, settings.choice, row.position, ids)
    return int(ids[(z + gumbel(bits)).argmax()])


@dataclass(frozen=True)
class Needs:
    """What the rows of a step ask of the device: launches that none of them needs are left out."""

    lists: bool = True                   # biases, suppressed ids, penalties
    noise: bool = True                   # a row with neither top-k nor top-p
    count: bool = True                   # top-k above MAX_FAST_K
    mass: bool = True                    # top-p alone, or after such a top-k

    @classmethod
    def of(cls, rows: Sequence[SampleRow]) -> Needs:
        """What these rows need."""
        drawn = [row.settings for row in rows
                 if row.settings.temperature >= _SMALLEST_TEMPERATURE]
        return cls(
            lists=any(row.suppress_ids.size or row.settings.bias_ids.size
                      or row.settings.repetition_penalty != 1.0
                      or row.settings.presence_penalty != 0.0
                      or row.settings.frequency_penalty != 0.0 for row in rows),
            noise=any(s.top_k == 0 and not s.top_p < 1.0 for s in drawn),
            count=any(s.top_k > MAX_FAST_K for s in drawn),
            mass=any(s.top_p < 1.0 and (s.top_k == 0 or s.top_k > MAX_FAST_K) for s in drawn))


@dataclass(frozen=True)
class PackedRows:
    """SampleRows as the device reads them: `records` (R, 88) u8, and the lists that they name."""

    records: npt.NDArray[np.uint8]
    ids: Int32                           # all lists, one after the other, at least one entry
    values: Float32                      # biases and counts beside their ids, else 0
    masks: npt.NDArray[np.uint32]        # (M, ceil(V / 32)), bit id % 32 of word id / 32; M > 0
    has_masks: bool                      # else the one is empty and nobody's
    needs: Needs


def pack_rows(rows: Sequence[SampleRow], vocab_size: int) -> PackedRows:
    """The rows of one step for `sample`."""
    records: list[npt.NDArray[np.uint8]] = []
    ids: list[Int64] = []
    values: list[Float32] = []
    masks: list[npt.NDArray[np.uint32]] = []
    end = 0

    def span(new_ids: Int64, new_values: Float32 | None = None) -> tuple[int, int]:
        nonlocal end
        ids.append(new_ids)
        values.append(np.zeros(new_ids.size, np.float32) if new_values is None else new_values)
        end += new_ids.size
        return end - new_ids.size, end

    distinct: list[SampleRow] = []
    kinds: list[int] = []                # of each row
    last: SampleRow | None = None
    for row in rows:
        s = row.settings
        if (last is not None and s is last.settings and row.suppress_ids is last.suppress_ids
                and row.allowed is None and last.allowed is None
                and not row.seen_ids.size and not row.counted_ids.size):
            kinds.append(len(distinct) - 1)  # as most rows of a verify step
            continue
        last = row if not row.seen_ids.size and not row.counted_ids.size else None
        kinds.append(len(distinct))
        distinct.append(row)
        records.append(_settings_record(s).copy())
        record = records[-1].view(_RECORD)[0]
        if s.bias_ids.size:
            record['bias'] = span(s.bias_ids, s.bias_values)
        if row.suppress_ids.size:
            record['suppress'] = span(row.suppress_ids)
        if s.repetition_penalty != 1.0:
            record['seen'] = span(row.seen_ids)
        if s.presence_penalty != 0.0 or s.frequency_penalty != 0.0:
            record['counted'] = span(row.counted_ids, row.counts)
        if row.allowed is not None:
            record['mask'] = len(masks)
            bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
            bits[:vocab_size] = row.allowed
            masks.append(np.packbits(bits, bitorder='little').view('<u4'))
    # bytes: NumPy copies records field by field
    packed = np.empty((len(rows), RECORD_BYTES), np.uint8)
    packed[...] = records[0] if len(records) == 1 else np.stack(records)[kinds]
    packed.view(np.uint32)[:, POSITION_BYTE // 4] = [row.position & 0xFFFFFFFF for row in rows]
    lists = _NO_LISTS
    if ids:
        lists = (np.concatenate([*ids, np.zeros(1, np.int64)]).astype(np.int32),
                 np.concatenate([*values, np.zeros(1, np.float32)]).astype(np.float32))
    return PackedRows(packed, *lists, np.stack(masks) if masks else _no_mask(vocab_size),
                      bool(masks), Needs.of(distinct))


@lru_cache(8)
def _no_mask(vocab_size: int) -> npt.NDArray[np.uint32]:
    return np.zeros((1, -(-vocab_size // 32)), np.uint32)


@lru_cache(256)
def _settings_record(s: SampleSettings) -> npt.NDArray[np.uint8]:
    """The record of a request's settings (RECORD_BYTES,): no lists, no mask, no position."""
    whole = np.zeros(RECORD_BYTES, np.uint8)
    record = whole.view(_RECORD)[0]
    greedy = s.temperature < _SMALLEST_TEMPERATURE
    record['temperature'] = 0.0 if greedy else min(s.temperature, _LARGEST_TEMPERATURE)
    record['top_k'], record['top_p'], record['min_p'] = s.top_k, s.top_p, s.min_p
    record['repetition'] = s.repetition_penalty
    record['presence'], record['frequency'] = s.presence_penalty, s.frequency_penalty
    record['seed'] = s.seed & _MASK64
    record['choice'] = np.array(s.choice & 0xFFFFFFFF, np.uint32).view(np.int32)
    record['mask'] = -1
    return whole


def sample(tokens: Any, logits: Any, rows: tuple[Any, Any, Any, Any],
           scratch: tuple[Any, Any, Any], stream: Any, needs: Needs = Needs(),
           results: Any = None, control: Any = None) -> None:
    """Enqueue the choice of tokens (R,) i32 from logits (R, V) f32, V a multiple of 4.

    rows: PackedRows' four arrays on the device; scratch: `scratch_sizes`; needs: PackedRows'.
    Biases, suppressed ids and penalties change the logits in place. `check_tokens` tells of rows
    without a token. results (TURNS, RESULT_ROWS) i32: pinned memory of the host that gets the
    tokens too, at each record's turn. control (7, RESULT_ROWS) i32: the inputs of the step, a row
    of each sequence; they and the records become those of the next one (cuda_inputs.StepInputs).
    """
    sizes = check('sample', tokens=tokens, logits=logits, records=rows[0], ids=rows[1],
                  values=rows[2], masks=rows[3])
    num_rows, vocab_size, num_runs = sizes['R'], sizes['V'], -(-sizes['V'] // RUN)
    assert vocab_size % 4 == 0 and sizes['words'] == -(-vocab_size // 32), sizes
    assert sizes['record'] == _RECORD.itemsize, sizes
    runs, bins_end = num_rows * num_runs, num_rows * _STAGES * _BINS
    assert all(array.size >= size for array, size in zip(
        scratch, scratch_sizes(num_rows, vocab_size), strict=True)), (num_rows, num_runs)
    largest, equals = scratch[0][:runs], scratch[0][runs:]
    winners, equal_winners = scratch[1][:runs], scratch[1][runs:]
    bins, states = scratch[2][:bins_end], scratch[2][bins_end:]
    records, ids, values, masks = rows
    adjust, find, spread, search, gather, pick = (device.compiled(spec) for spec in specs())
    grid = (-(-num_runs // 8), num_rows)
    end = vocab_size, num_runs
    row = logits, records, masks
    if needs.lists:
        device.launch(adjust, (num_rows,), 256, (logits, records, ids, values, vocab_size),
                      stream)
    device.launch(find, grid, 256, (largest, bins, *row, *end), stream)
    if needs.noise:
        device.launch(spread, grid, 256, (winners, largest, *row, *end), stream)
    stages = [*range(3 if needs.count else 0), *range(3, 6 if needs.mass else 3)]
    for stage in stages:
        device.launch(search, grid, 256, (bins, states, largest, *row, stage, *end), stream)
    if stages:
        device.launch(gather, grid, 256, (winners, equal_winners, equals, bins, states, largest,
                                          *row, *end), stream)
    device.launch(pick, (num_rows,), 1024, (tokens, results, control, largest, equals, winners,
                                            equal_winners, states, *row, *end), stream)


def scratch_sizes(num_rows: int, vocab_size: int) -> tuple[int, int, int]:
    """Numbers of the three scratch arrays: u32, u64, u64."""
    runs = num_rows * -(-vocab_size // RUN)
    return 2 * runs, 2 * runs, num_rows * (_STAGES * _BINS + (_STAGES + 1) * _STATE_WORDS)


def check_tokens(tokens: Int32) -> None:
    """Raise SampleError for the first row for which the device found no token."""
    for token in tokens[tokens < 0].tolist():
        raise SampleError(_ERRORS[token])


def specs() -> list[KernelSpec]:
    """What is compiled for the launches, in their order."""
    return [KernelSpec.of(file, entry) for file, entry in _ENTRIES]


def logprobs_ref(logits: npt.NDArray[Any], token_id: int, num_top: int,
                 ) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Natural logarithms of softmax(logits) in float64: the chosen token's, and the num_top best.

    Of the model's own distribution, before bias, penalties and temperature. For reports, never for
    a choice, so that it may use the library's functions.
    """
    row = logits.astype(np.float64, copy=False)
    top = row.max()
    log_sum = top + np.log(np.exp(row - top).sum())
    best: list[tuple[int, float]] = []
    if num_top > 0:
        values = logits.astype(np.float32, copy=False)
        ids = _top_k(values, num_top) if num_top < row.size else np.arange(row.size)
        order = np.argsort(-values[ids], kind='stable')
        best = [(int(i), float(row[i] - log_sum)) for i in ids[order]]
    return float(row[token_id] - log_sum), tuple(best)


def bytes_moved(num_rows: int, vocab_size: int) -> int:
    """Bytes read and written for R rows of V float32 logits: one pass to find the candidates."""
    return num_rows * (vocab_size * 4 + 4)


def noise_bits(seed: int, choice: int, position: int, token_ids: npt.NDArray[Any]) -> UInt64:
    """64 random bits per token id, a hash of (seed, choice, position, id): (N,) -> (N,) uint64.

    (seed, choice, position) are mixed into two 64-bit keys; each id then takes two rounds of
    multiply and xor-shift with a key before each of them.
    """
    state = _mix((seed + _GOLDEN) & _MASK64)
    state = _mix(state ^ ((choice & 0xFFFFFFFF) << 32 | (position & 0xFFFFFFFF)))
    key_0, key_1 = _mix((state + _GOLDEN) & _MASK64), _mix((state + 2 * _GOLDEN) & _MASK64)
    x: UInt64 = token_ids.astype(np.uint64)
    x *= _U(_GOLDEN)
    x += _U(key_0)
    x ^= x >> _U(30)
    x *= _U(_MIX_1)
    x ^= _U(key_1)
    x ^= x >> _U(27)
    x *= _U(_MIX_2)
    x ^= x >> _U(31)
    return x


def gumbel(bits: UInt64) -> Float32:
    """Standard Gumbel noise -log(-log(u)) of 64 uniform bits: (N,) uint64 -> (N,) float32.

    With v = bits / 2**64 and u = 1 - v. The largest noise belongs to the smallest v, where v has
    float32's full relative precision (u would have lost it): for v < 1/2 the inner logarithm is
    -log(1 - v) = 2 atanh(v / (2 - v)), else -log(u) of u = not-bits / 2**64. The lowest bit is
    set, so that neither is 0. Noise lies between -3.8 and 44.4.
    """
    upper = bits >= _U(1 << 63)
    word = np.where(upper, ~bits, bits) | _U(1)
    x = word.astype(np.float32) * _F(2.0 ** -64)         # v or u, at most 1/2; one rounding
    exponential = np.where(upper, -fixed_log(x), _two_atanh(x / (_F(2.0) - x)))
    return -fixed_log(exponential)


def fixed_log(x: Float32) -> Float32:
    """Natural logarithm of normal positive float32 numbers with fixed roundings.

    x = 2**e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1).
    Errors: m - 1 is exact, s has two roundings (1 ulp), the series see `_two_atanh`; e * LN2_HI is
    exact (LN2_HI has 9 significant bits, |e| < 128), the two last sums round once each. In all
    below 3.5 ulp of the larger of |log x| and |log m|, which are of one size (|log x| >= 0.34 when
    e is not 0): relative error below 5e-7, also next to x = 1.
    """
    raw = x.view(np.int32)
    exponent = (raw - np.int32(0x3F3504F3)) >> np.int32(23)         # 0x3F3504F3: sqrt(1/2)
    m = (raw - (exponent << np.int32(23))).view(np.float32)
    e = exponent.astype(np.float32)
    log_m = _two_atanh((m - _F(1.0)) / (m + _F(1.0)))
    return e * _F(0.693359375) + (log_m + e * _F(-2.12194440e-4))


def fixed_exp(z: Float32) -> Float32:
    """exp(z) for z <= 0 with fixed roundings; 0 below z = -28 (2**-40); exp(0) is exactly 1.

    z = n * log 2 + r, |r| <= 0.347; series to r**7 / 5040 (cut-off below 6e-9 relative), Horner
    from r: the sum is dominated by 1 + r, so that its roundings stay below 2 ulp. With the
    reduction's error (n * LN2_HI exact, r rounded twice, |r| below 1/2) the relative error is
    below 5e-7.
    """
    tiny = ~(z >= _LOWEST_MASS)
    safe: Float32 = np.where(tiny, _F(0.0), z)
    n = np.rint(safe * _F(1.44269504))
    r = (safe - n * _F(0.693359375)) - n * _F(-2.12194440e-4)
    p: Float32 = np.full(r.shape, 1.0 / 5040.0, np.float32)
    for c in (1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0):
        p = p * r + _F(c)                                # two ufuncs: two roundings
    scale = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    p *= scale                                           # a power of two: exact
    p[tiny] = _F(0.0)
    return p


def _two_atanh(s: Float32) -> Float32:
    """2 atanh(s) for |s| <= 1/3: 2 s + s**3 (2/3 + 2/5 s**2 + ... + 2/13 s**10).

    Cut-off below s**14 / 15 = 1.4e-8 relative; the correction is at most 4% of 2 s, so that its
    roundings count little: below 1.5 ulp in all.
    """
    q = s * s
    p: Float32 = np.full(q.shape, 2.0 / 13.0, np.float32)
    for c in (2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0):
        p = p * q + _F(c)
    cubic: Float32 = (s * q) * p
    return (s + s) + cubic


def _adjusted(values: Float32, row: SampleRow) -> Float32:
    """Logits after bias, suppression, mask and penalties; a copy when anything changes."""
    settings = row.settings
    repeats = settings.repetition_penalty != 1.0 and row.seen_ids.size > 0
    counts = ((settings.presence_penalty != 0.0 or settings.frequency_penalty != 0.0)
              and row.counted_ids.size > 0)
    if not (settings.bias_ids.size or row.suppress_ids.size or row.allowed is not None
            or repeats or counts):
        return values
    values = values.copy()
    if settings.bias_ids.size:
        values[settings.bias_ids] += settings.bias_values
    if row.suppress_ids.size:
        values[row.suppress_ids] = -np.inf
    if row.allowed is not None:
        values[~row.allowed] = -np.inf
    if repeats:
        seen, penalty = values[row.seen_ids], _F(settings.repetition_penalty)
        values[row.seen_ids] = np.where(seen > 0, seen / penalty, seen * penalty)
    if counts:
        counted = values[row.counted_ids] - row.counts * _F(settings.frequency_penalty)
        values[row.counted_ids] = counted - _F(settings.presence_penalty)
    return values


def _top_k(values: Float32, k: int) -> Int64:
    """Indices (ascending) of the k < N largest values in the total order: (N,) -> (k,)."""
    threshold = np.partition(values, values.size - k)[values.size - k]   # the k-th largest
    above = np.flatnonzero(values > threshold)                           # fewer than k
    equal = np.flatnonzero(values == threshold)[:k - above.size]
    return np.sort(np.concatenate((above, equal)))


def _top_p(values: Float32, z: Float32, top_p: float) -> Int64:
    """Indices (ascending) of the shortest prefix in the total order that holds top_p of the mass.

    An id is kept when the mass before it is below top_p * total; the first is always kept.
    `values` give the order (temperature may have merged different ones), z the mass.
    """
    order = np.argsort(-values, kind='stable')           # larger first, then lower index
    mass = (fixed_exp(z[order]) * _F(2.0 ** 40)).astype(np.uint64)
    sums = np.cumsum(mass)
    limit = int(float(top_p) * float(sums[-1]))          # float64: one rounding each
    num_kept = int(np.searchsorted(sums, _U(limit), side='left')) + 1
    return np.sort(order[:num_kept])


def _mix(x: int) -> int:
    """splitmix64's finaliser on a Python integer."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK64
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK64
    return x ^ (x >> 31)
