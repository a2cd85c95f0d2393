# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 on a CUDA device: passes of rows of one role, graphs, tokens chosen on the device.

The same Decoder as on the CPU over CudaOps. One stream; all arrays exist before the first step.
`choose` may enqueue the next step before it returns the tokens of this one (run-ahead); what it
enqueued counts only if the next batch turns out to be the one foreseen. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Role
from gemma_thor_ros.models.config import FULL, SLIDING, ModelConfig
from gemma_thor_ros.models.cuda_inputs import (
    PROMPT_BUCKETS,
    STEP_BYTES,
    Key,
    Pass,
    StepInputs,
    advanced,
    cut_passes,
    prompt_bucket,
    same_rows,
    wanted_rows,
)
from gemma_thor_ros.models.cuda_sampler import Chosen, CudaSampler, same_choice
from gemma_thor_ros.models.cuda_shadow import Shadow, ShadowRows
from gemma_thor_ros.models.gemma4 import Decoder, LayerTap
from gemma_thor_ros.models.kv_cache import KVCache
from gemma_thor_ros.models.vision import Vision
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.models.workspace import device_activations, first_rows
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.attention_decode import AttentionScratch, max_chunks
from gemma_thor_ros.ops.cuda_table import MAX_ROWS, CudaOps, CudaPlace, KvScales
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.graphs import Graphs
from gemma_thor_ros.ops.kv_append import rope_turns
from gemma_thor_ros.ops.linear import StoredWeight
from gemma_thor_ros.ops.moe_nvfp4 import dense_parts
from gemma_thor_ros.ops.sample import Needs, SampleRow
from gemma_thor_ros.ops.slot_copy import Slots
from gemma_thor_ros.ops.staging import StepBuffer
from gemma_thor_ros.ops.table import Router, StepRows
from gemma_thor_ros.ops.vision_cuda import CudaVisionOps

Array = npt.NDArray[Any]
Int32 = npt.NDArray[np.int32]
CudaKvDtype = Literal['bf16', 'fp8']
PAGE_TYPES: dict[str, np.dtype[Any]] = {'bf16': np.dtype(np.uint16), 'fp8': np.dtype(np.uint8)}


@dataclass(frozen=True)
class _Sent:
    """A pass under way whose tokens are on their way to the host."""

    step: Pass
    rows: tuple[SampleRow, ...]
    chosen: Chosen
    wanted: npt.NDArray[np.int64]        # logit rows of the batch that they are of
    event: Any
    advances: bool                       # the device's inputs are those of the next step then

    def tokens(self) -> Int32:
        """Wait for them."""
        self.event.synchronize()
        return self.chosen.tokens


@dataclass(frozen=True)
class StepTokens:
    """What `choose` gives: a token for each logit row, and the logits that were asked for.

    tokens (R,), negative where a row has none: ops/sample.check_tokens; logits (V,) by logit row.
    """

    tokens: Int32
    logits: dict[int, Array]


class CudaGemma4(Decoder):
    """A model on a CUDA device. One thread may use it, and one cache of `new_kv_cache`."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, StoredWeight],
                 loader: DeviceLoader, *, stream: Any, context_length: int,
                 kv_dtype: CudaKvDtype = 'fp8', graphs: bool = True, prompt_rows: int = 256,
                 vision: tuple[VisionConfig, Mapping[str, StoredWeight]] | None = None) -> None:
        """Take the weights in; the loader uses the same stream.

        context_length: the most tokens of a sequence. graphs False launches one by one, with the
        same results. prompt_rows: the most rows of a prompt that run together, up to the next
        bucket; of an image at least. vision: config and weights of the part that reads images.
        """
        super().__init__(config, weights, loader)
        self.vision = None if vision is None else Vision(*vision, loader, CudaVisionOps(stream))
        loader.finish()
        self.stream = stream
        self.kv_dtype = kv_dtype
        prompt_rows = most = max(MAX_ROWS, prompt_bucket(prompt_rows))
        experts = (config.num_experts, config.top_k_experts) if config.num_experts else None
        self.ops = CudaOps(stream, config.hidden_size, experts, most, device.zeros)
        self.prompt_rows = prompt_rows
        self.graphs = Graphs(stream, graphs)
        self.num_ahead = self.num_ahead_used = 0     # steps enqueued early, and those that counted
        self._context_length = context_length
        parts = 0                        # of the dense MLP, where the experts' launches do it
        if experts and not loader.has_dense_mlp:
            parts = dense_parts(config.intermediate_size, config.moe_intermediate_size)
        self._act = device_activations(config, most, device.zeros, loader.has_dense_mlp,
                                       (MAX_ROWS, parts))
        self._logits = device.zeros((MAX_ROWS, config.vocab_size), np.float32)
        self._buffer = StepBuffer(stream)
        self._slots = Slots(STEP_BYTES, 16, stream)
        self._sampler = CudaSampler(config.vocab_size, stream, self._buffer)
        self._turns: dict[str, Any] = {}
        self._scratch: dict[str, AttentionScratch] = {}
        for shape in (config.sliding, config.full):
            kind = shape.layer_type
            self._turns[kind] = device.put(rope_turns(shape.rope_theta, shape.head_dim,
                                                      shape.num_rotary_pairs))
            chunks = max_chunks(context_length, shape.window)
            self._scratch[kind] = AttentionScratch(
                device.zeros((MAX_ROWS, shape.num_q_heads, chunks, shape.head_dim), np.float32),
                device.zeros((MAX_ROWS, shape.num_q_heads, chunks, 2), np.float32),
                device.zeros(MAX_ROWS * MAX_ROWS * shape.num_q_heads, np.uint32))
        self._inputs: StepInputs | None = None
        self._cache: KVCache | None = None
        self._ahead: _Sent | None = None
        self._fed: Int32 = np.empty(0, np.int32)     # input tokens of that step
        self._shadow: Shadow | None = None

    def attach(self, shadow: Shadow | None) -> None:
        """Let something run behind every pass from now on; a new cache has to be made then."""
        self._shadow = shadow
        self._cache = self._inputs = self._ahead = None

    def kv_scales(self, layer: int) -> KvScales:
        """What a layer's K and V are multiplied by, for whoever reads its pages."""
        scales: KvScales = self._layers[layer].kv_scales
        return scales

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self.config.vocab_size

    def new_kv_cache(self, num_sliding_pages: int, num_full_pages: int,
                     page_size: int) -> KVCache:
        """Pages on the device; the graphs are made for the newest cache."""
        max_pages = -(-self._context_length // page_size)
        self._inputs = StepInputs(page_size, max_pages, self.config.sliding_window,
                                  self.prompt_rows, device.zeros, self._buffer, self._slots)
        self.graphs = Graphs(self.stream, self.graphs.enabled)
        self._ahead = None
        self._cache = KVCache(self.config, num_sliding_pages, num_full_pages, page_size,
                              PAGE_TYPES[self.kv_dtype], device.zeros, self.stream)
        return self._cache

    def forward(self, batch: Batch, kv_cache: KVCache, tap: LayerTap | None = None) -> Array:
        """As models/gemma4.Gemma4.forward: logits (R, V) float32 on the host.

        With a tap nothing runs as a graph; it gets float32 copies of each layer's rows.
        """
        logits = np.empty((batch.logit_rows.size, self.vocab_size), np.float32)
        self._ahead = None
        num_layers = self.config.num_hidden_layers if tap is not None else 0
        hidden = np.empty((num_layers, batch.token_ids.size, self.config.hidden_size), np.float32)
        # the logits of a piece have room for so many rows; of a prompt with images too
        few = batch.logit_rows.size <= len(batch.spans) or any(span.blocks for span in batch.spans)
        most = self.prompt_rows if few else MAX_ROWS
        with device.errors():
            for step in cut_passes(batch, most):
                wanted = wanted_rows(step, batch)
                self._send(step, batch.token_ids[step.rows], None)
                if tap is None:
                    self._enqueue(step, batch, kv_cache, wanted, None)
                else:
                    self._enqueue_tapped(step, batch, kv_cache, wanted, hidden)
                for row, index in wanted:
                    device.copy_out(logits[index], self._logits[row - _first(step, wanted)],
                                    self.stream)
                self.stream.synchronize()            # the logits are of the next pass afterwards
        for layer in range(num_layers):
            assert tap is not None
            tap(layer, hidden[layer])
        return logits

    def choose(self, batch: Batch, kv_cache: KVCache, rows: Sequence[SampleRow], *,
               run_ahead: bool = False, logits_of: Collection[int] = (),
               draft_ahead: bool = False) -> StepTokens:
        """Run a step and choose a token for each of the batch's logit rows.

        rows: what the sampler needs, one for each logit row; logits_of: logit rows whose logits
        are wanted too. run_ahead allows the next step of these sequences to start early: not while
        requests wait. draft_ahead: their next drafts start early.
        """
        result = StepTokens(np.empty(batch.logit_rows.size, np.int32), {})
        passes = cut_passes(batch, self.prompt_rows)
        with device.errors():
            sent = None if logits_of else self._take_ahead(passes, batch, rows)
            self._ahead = None
            if sent is None:
                for step in passes:
                    if sent is not None:             # of the pass before
                        result.tokens[sent.wanted] = sent.tokens()
                    sent = self._run(step, batch, kv_cache, rows, logits_of, result.logits)
            if sent is None:
                self.stream.synchronize()
                return result
            if run_ahead and len(passes) == 1 and sent.advances:
                self._send_ahead(passes[0], sent, kv_cache)
            elif draft_ahead and len(passes) == 1:
                self._draft_ahead(sent, kv_cache)
            found = sent.tokens()
            result.tokens[sent.wanted] = found
            self._fed = found
        return result

    def routers(self) -> list[Router]:
        """The routers of all layers, for benchmarks."""
        return [layer.experts.router for layer in self._layers if layer.experts is not None]

    def launches(self, key: Key) -> Callable[[], None]:
        """What enqueues the layers and the head of a pass of these sizes, for benchmarks.

        Its inputs are those of the step before.
        """
        cache = self._cache
        assert cache is not None

        def enqueue() -> None:
            self._enqueue_layers(key, cache)
            first = key.num_rows - 1 if key.prompt else 0
            self._head(first, key.num_rows, first)

        return enqueue

    def chosen_experts(self, num_rows: int) -> npt.NDArray[np.int32]:
        """(rows, K) of the last layer of the last pass."""
        found = np.empty((num_rows, self.config.top_k_experts), np.int32)
        assert self._act.expert_ids is not None
        with device.errors():
            device.copy_out(found, self._act.expert_ids[:num_rows], self.stream)
            self.stream.synchronize()
        return found

    def experts_by_layer(self, batch: Batch, kv_cache: KVCache) -> list[npt.NDArray[np.int32]]:
        """(rows, K) of every layer, in a step of at most MAX_ROWS rows without a graph."""
        found: list[npt.NDArray[np.int32]] = []
        step, = cut_passes(batch, MAX_ROWS)
        self._ahead = None
        with device.errors():
            self._send(step, batch.token_ids[step.rows], None)
            self._enqueue_layers(step.key, kv_cache, lambda _: found.append(
                self.chosen_experts(step.rows.size)), _soft_rows(step, batch))
        return found

    def warm_up(self, keys: Sequence[Key]) -> None:
        """Load the kernels and make the graphs of some pass sizes, on rows of padding alone."""
        assert self._cache is not None and self._inputs is not None
        # what most requests need: greedy, or top-k of some hundred
        needs = Needs(bool(self.config.suppress_tokens), False, False, False)
        with device.errors():
            for key in keys:
                role = Role.PREFILL if key.prompt else Role.DECODE
                send = self._inputs.put if key.takes else self._inputs.send
                self._buffer.begin()
                send(Pass(role, ()), np.empty(0, np.int32), self._sampler.padding())
                self._buffer.end()
                self._graph(key, not key.prompt, None if key.prompt else needs, self._cache)
            self.stream.synchronize()

    def _run(self, step: Pass, batch: Batch, kv_cache: KVCache, rows: Sequence[SampleRow],
             logits_of: Collection[int], logits: dict[int, Array]) -> _Sent | None:
        """Enqueue a pass and the choice of its tokens; None where it wants none."""
        wanted = wanted_rows(step, batch)
        first = _first(step, wanted)
        settings = tuple([rows[index] for _, index in wanted])
        token_ids = batch.token_ids
        if token_ids.size != step.num_rows:
            token_ids = token_ids[step.rows]
        kept = [(row, index) for row, index in wanted if index in logits_of] if logits_of else []
        whole = _whole(step, wanted) and not kept    # the graph chooses, too
        choice = ([row - first for row, _ in wanted], settings) if wanted else None
        takes = whole and step.key.takes
        try:
            chosen = self._send(step, token_ids, choice, takes)
            self._enqueue(step, batch, kv_cache, wanted,
                          chosen.needs if chosen and whole else None)
        except Exception:
            if takes:
                self._slots.failed()
            raise
        if chosen is None:
            return None
        assert self._inputs is not None
        for row, index in kept:                      # before the sampler changes them
            logits[index] = np.empty(self.vocab_size, np.float32)
            device.copy_out(logits[index], self._logits[row - first], self.stream)
        if not whole:
            low, count = chosen.low, int(chosen.picks[-1]) + 1
            self._sampler.launch(self._logits[low:low + count], self._inputs.records[:count],
                                 chosen.needs)
        return self._sent(step, settings, chosen, [index for _, index in wanted],
                          whole and step.key.max_rows == 1, takes)

    def _send(self, step: Pass, token_ids: Int32,
              choice: tuple[Sequence[int], Sequence[SampleRow]] | None,
              takes: bool = False) -> Chosen | None:
        """Enqueue all copies of a pass; choice: rows of the pass and their settings.

        takes: its graph takes most inputs by itself.
        """
        assert self._inputs is not None
        self._buffer.begin()
        chosen, records = (None, None) if choice is None else self._sampler.send(*choice)
        send = self._inputs.put if takes else self._inputs.send
        send(step, token_ids, records)
        self._buffer.end()
        return chosen

    def _sent(self, step: Pass, settings: tuple[SampleRow, ...], chosen: Chosen,
              wanted: Sequence[int], advances: bool, took: bool = False) -> _Sent:
        event = self._slots.enqueued() if took else device.new_event()
        if not took:
            event.record(self.stream)
        return _Sent(step, settings, chosen, np.array(wanted, np.int64), event, advances)

    def _enqueue(self, step: Pass, batch: Batch, kv_cache: KVCache,
                 wanted: list[tuple[int, int]], needs: Needs | None) -> None:
        """Enqueue a pass whose inputs are sent, and the logits of the wanted rows.

        needs: of the choice of all rows, where it is part of it.
        """
        assert kv_cache is self._cache, 'a model serves its newest cache alone'
        whole = _whole(step, wanted)
        rare = PROMPT_BUCKETS[-1] < step.num_rows < self.prompt_rows or step.key.images
        if step.role is Role.PREFILL and rare:           # hardly ever of the same size again
            self._enqueue_layers(step.key, kv_cache, soft_rows=_soft_rows(step, batch))
        else:
            self._graph(step.key, whole, needs, kv_cache)
        if wanted and not whole:
            self._head(wanted[0][0], wanted[-1][0] + 1, _first(step, wanted))

    def _enqueue_tapped(self, step: Pass, batch: Batch, kv_cache: KVCache,
                        wanted: list[tuple[int, int]], hidden: Array) -> None:
        """As _enqueue, one launch after the other, with the rows of every layer copied out."""
        rows = step.rows
        values = np.empty((rows.size, self.config.hidden_size), np.float32)

        def read(layer: int) -> None:
            device.copy_out(values, self._act.residual[:rows.size], self.stream)
            self.stream.synchronize()
            hidden[layer, rows] = values

        self._enqueue_layers(step.key, kv_cache, read, _soft_rows(step, batch))
        if wanted:
            self._head(wanted[0][0], wanted[-1][0] + 1, _first(step, wanted))

    def _graph(self, key: Key, with_head: bool, needs: Needs | None, kv_cache: KVCache) -> None:
        """Enqueue the layers, the logits of all rows, and where needs says how, their tokens.

        Behind one row of each sequence the step's inputs then become those of the next one; with
        more rows they are taken from where they were put.
        """
        inputs, rows = self._inputs, key.num_rows
        takes = needs is not None and key.takes

        def work() -> None:
            assert inputs is not None
            if takes:
                inputs.take()
            self._enqueue_layers(key, kv_cache)
            if with_head:
                self._head(0, rows)
            if needs is not None:
                self._sampler.launch(self._logits[:rows], inputs.records[:rows], needs,
                                     inputs.control if key.max_rows == 1 else None)

        self.graphs.run((key, with_head, needs, self._sampler.num_lists), work)

    def _enqueue_layers(self, key: Key, kv_cache: KVCache,
                        after_layer: Callable[[int], None] | None = None,
                        soft_rows: tuple[tuple[Any, Any], ...] = ()) -> None:
        inputs = self._inputs
        assert inputs is not None
        token_ids, sequences, positions, spans = inputs.rows(key)
        places = {}
        for kind, window in (SLIDING, self.config.sliding.window), (FULL, None):
            seen = self.config.image_blocks(kind)
            places[kind] = CudaPlace(
                self._turns[kind], sequences, positions, inputs.tables[kind][:key.num_sequences],
                spans, self._scratch[kind], window, key.max_rows, key.prompt,
                None if seen == 'causal' else inputs.blocks(key), seen == 'whole')
        step = StepRows(token_ids, 0 if key.prompt else key.num_rows, sequences, places,
                        soft_rows)
        act, shadow = first_rows(self._act, key.num_rows), self._shadow

        def layer_done(layer: int) -> None:
            if shadow is not None and layer in shadow.layers:
                shadow.tap(layer, act.residual)
            if after_layer is not None:
                after_layer(layer)

        self.run_layers(self.ops, act, step, kv_cache, layer_done)
        if shadow is not None:
            shadow.keep(act.normed, ShadowRows(sequences, positions, {
                kind: place.page_table for kind, place in places.items()}, key.prompt))

    def _head(self, low: int, high: int, first: int = 0) -> None:
        """Logits of rows low .. high - 1 of the pass, in rows low - first .. of self._logits."""
        assert high - first <= MAX_ROWS, (low, high, first)
        self.ops.head(self._logits[low - first:high - first], self._act.normed[low:high],
                      self.table, self.config.final_logit_softcapping)

    def _send_ahead(self, step: Pass, sent: _Sent, kv_cache: KVCache) -> None:
        """Enqueue the step after `sent`, whose inputs the device makes, if it can be known.

        Every sequence must have one row, a page for the next position and a choice that depends on
        its settings and the position alone. step: `sent` with the pages that there are by now.
        """
        inputs = self._inputs
        assert inputs is not None
        foreseen = all(row.allowed is None and not row.seen_ids.size and not row.counted_ids.size
                       for row in sent.rows)
        if not foreseen or not all(inputs.has_page(piece, piece.position + 1)
                                   for piece in step.pieces):
            return
        following = advanced(step)
        self._buffer.begin()
        inputs.send_tables(following)
        self._buffer.end()
        chosen = self._sampler.next_turn(sent.chosen)
        self._graph(following.key, True, chosen.needs, kv_cache)
        settings = tuple(replace(row, position=row.position + 1) for row in sent.rows)
        self._ahead = self._sent(following, settings, chosen, range(following.num_rows), True)
        self.num_ahead += 1

    def _draft_ahead(self, sent: _Sent, kv_cache: KVCache) -> None:
        """Enqueue the drafts behind a pass of generated rows that all choose a token."""
        step = sent.step
        if self._shadow is None or step.role is not Role.DECODE or sent.advances or (
                len(sent.rows) != step.num_rows):
            return
        assert self._inputs is not None
        rows = np.cumsum([0, *(piece.num_rows for piece in step.pieces[:-1])])
        self._shadow.ahead(step, [sent.rows[row] for row in rows], self._inputs,
                           self._sampler.tokens, kv_cache)

    def _take_ahead(self, passes: list[Pass], batch: Batch,
                    rows: Sequence[SampleRow]) -> _Sent | None:
        """The step that was enqueued early, if it is this one."""
        ahead = self._ahead
        if ahead is None or len(passes) != 1 or passes[0].role is not Role.DECODE:
            return None
        assert self._inputs is not None
        step, = passes
        agrees = (same_rows(ahead.step, step.pieces) and self._inputs.holds(step)
                  and len(rows) == len(ahead.rows) and all(
                      same_choice(a, b) for a, b in zip(ahead.rows, rows, strict=True)))
        # its input tokens were those that the last call returned; a draft or an edit is another
        if not agrees or not np.array_equal(batch.token_ids[step.rows], self._fed):
            return None
        self.num_ahead_used += 1
        return ahead


def _whole(step: Pass, wanted: list[tuple[int, int]]) -> bool:
    """Whether a pass of generated rows wants the logits of all of them."""
    return step.role is Role.DECODE and len(wanted) == step.num_rows


def _soft_rows(step: Pass, batch: Batch) -> tuple[tuple[Any, Any], ...]:
    """The soft tokens of a pass, and the rows of the pass that they are."""
    if step.role is not Role.PREFILL:
        return ()
    piece, = step.pieces
    return tuple((slice(soft.start_row - piece.first,
                        soft.start_row - piece.first + soft.values.shape[0]), soft.values)
                 for soft in batch.soft_rows
                 if piece.first <= soft.start_row < piece.first + piece.num_rows)


def _first(step: Pass, wanted: list[tuple[int, int]]) -> int:
    """The row of the pass whose logits lie in row 0: prompts want their last rows alone."""
    return wanted[0][0] if step.role is Role.PREFILL and wanted else 0
