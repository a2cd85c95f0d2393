# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A drafter on a CUDA device: the engine's Drafter and the model's Shadow around a draft network.

A draft pass runs as one graph: from the newest tokens, which it takes from memory of the host, to
ids and confidences, which it leaves there. `ahead` enqueues it behind a verify step from the
tokens that only the device knows yet; `draft` then finds it under way, and waits for the rest of
it. Knows no layers and no acceptance by the engine: whatever it guesses, no answer depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.models.cuda_draft_inputs import (
    AT_ONCE,
    DraftInputs,
    DraftPicks,
    Place,
    control_bytes,
    result_bytes,
)
from gemma_thor_ros.models.cuda_inputs import Pass, StepInputs, bucket
from gemma_thor_ros.models.cuda_shadow import ShadowRows
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.drafter import Drafts, DraftSpan
from gemma_thor_ros.models.page_planes import Planes
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.draft_pick import RecordLayout, draft_accept
from gemma_thor_ros.ops.graphs import Graphs
from gemma_thor_ros.ops.sample import RECORD_BYTES, Needs, SampleRow
from gemma_thor_ros.ops.slot_copy import Slots
from gemma_thor_ros.ops.staging import StepBuffer

_ELEMENT_BYTES = 2                       # bf16
# choose(logits (R, V), row): enqueues the choices row .. row + R - 1; their tokens (R,)
Choose = Callable[[Any, int], Any]


@dataclass(frozen=True)
class CudaDraftConfig:
    """drafter.DrafterConfig of a drafter on the device, whose taps never leave it."""

    name: str
    max_drafts: int
    window: int
    slot_bytes: tuple[int, int]          # beside a slot of a sliding page, and of a full one
    taps: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: DFlashConfig | MtpConfig) -> CudaDraftConfig:
        """The same for a draft model's own config."""
        if isinstance(config, MtpConfig):
            slot = config.backbone_hidden_size * _ELEMENT_BYTES, 0
        else:
            row = 2 * config.num_key_value_heads * config.head_dim * _ELEMENT_BYTES
            slot = (row * config.layer_types.count(SLIDING), row * config.layer_types.count(FULL))
        return cls(config.name, config.max_drafts, config.window, slot)

    def bytes_per_page(self, page_size: int) -> tuple[int, int]:
        """Bytes that it keeps beside a sliding page and beside a full page."""
        return self.slot_bytes[0] * page_size, self.slot_bytes[1] * page_size


class Network(Protocol):
    """A draft model on the device: cuda_dflash.py and cuda_mtp.py."""

    @property
    def config(self) -> DFlashConfig | MtpConfig:
        """Its shape."""

    @property
    def layers(self) -> frozenset[int]:
        """Layers of the target that it taps."""

    @property
    def ids_stride(self) -> int:
        """Input ids of a sequence; the first one is the newest token."""

    @property
    def window(self) -> int:
        """Keys of sliding pages that the newest row sees, itself included."""

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> None:
        """Make static memory for what it keeps of each row."""

    def planes(self) -> Planes:
        """As CudaDrafter.planes."""

    def tap(self, layer: int, residual: Any) -> None:
        """As Shadow.tap."""

    def keep(self, normed: Any, rows: ShadowRows) -> None:
        """As Shadow.keep."""

    def steps(self, num_drafts: int) -> int:
        """Rounds of choices that give so many drafts."""

    def layout(self, num_sequences: int, num_steps: int) -> RecordLayout:
        """Where the choices lie."""

    def launch(self, inputs: DraftInputs, choose: Choose, num_sequences: int, num_steps: int,
               kv_cache: Any) -> None:
        """Enqueue a draft pass; the first launch does not overlap what comes before it."""

    def drafts(self, values: npt.NDArray[Any], num_sequences: int,
               num_steps: int) -> npt.NDArray[Any]:
        """(B, N) of the choices (rows,): N drafts of each sequence."""


@dataclass(frozen=True)
class _Sent:
    """A draft pass under way."""

    places: tuple[Place, ...]
    num_sequences: int                   # with padding
    num_steps: int
    result: npt.NDArray[np.uint8]        # pinned; see DraftPicks.read
    event: Any


class CudaDrafter:
    """A drafter of a model on the device. One thread may use it, and its newest cache."""

    def __init__(self, network: Network, vocab_size: int, stream: Any, context_length: int,
                 graphs: bool) -> None:
        self.config = CudaDraftConfig.of(network.config)
        self.network = network
        self.num_ahead = self.num_ahead_used = 0     # passes enqueued early, those that counted
        self.graphs = Graphs(stream, graphs)
        self._stream = stream
        self._context_length = context_length
        self._buffer = StepBuffer(stream)
        most = AT_ONCE * network.steps(network.config.max_drafts)
        self._picks = DraftPicks(most, vocab_size, stream, self._buffer)
        self._inputs: DraftInputs | None = None
        self._behind: StepInputs | None = None       # the steps that graphs start from
        sizes = control_bytes(network.ids_stride) + most * RECORD_BYTES, result_bytes(most)
        self._slots = Slots(sizes[0], sizes[1], stream)
        self._steps = network.steps(1)               # of the last pass that was asked for
        self._ahead: _Sent | None = None

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> None:
        """Pages beside the target's; they belong to the network."""
        self.network.new_cache(num_sliding_pages, num_full_pages, page_size)
        max_pages = -(-self._context_length // page_size)
        mask = getattr(self.network.config, 'mask_token_id', -1)
        self._inputs = DraftInputs(self.network.ids_stride, mask, page_size, max_pages,
                                   self.network.window, self._picks.tokens.size, self._buffer,
                                   self._slots)
        self.graphs = Graphs(self._stream, self.graphs.enabled)
        self._ahead = None

    def planes(self) -> Planes:
        """What the network keeps beside the target's pages."""
        return self.network.planes()

    def absorb(self, batch: Batch, hidden: Any, cache: Any) -> None:
        """Nothing: as the model's shadow it has taken the rows already."""

    @property
    def layers(self) -> frozenset[int]:
        """As Shadow.layers."""
        return self.network.layers

    def tap(self, layer: int, residual: Any) -> None:
        """As Shadow.tap."""
        self.network.tap(layer, residual)

    def keep(self, normed: Any, rows: ShadowRows) -> None:
        """As Shadow.keep."""
        assert self._inputs is not None, 'the drafter has no cache'
        self.network.keep(normed, rows)

    def draft(self, spans: Sequence[DraftSpan], cache: Any, target_cache: Any) -> Drafts:
        """Guess the next tokens of B sequences."""
        longest = max(span.num_drafts for span in spans)
        self._steps = self.network.steps(longest)
        with device.errors():
            found = self._take_ahead(spans, longest)
            if found is not None:
                return found
            parts = []
            for start in range(0, len(spans), AT_ONCE):
                part = spans[start:start + AT_ONCE]
                places = tuple(Place(span.token_id, span.position, span.position,
                                     span.sliding_pages, span.full_pages) for span in part)
                sent = self._send(places, [span.first for span in part], target_cache, None)
                parts.append(self._read(sent, longest))
        if len(parts) == 1:
            return parts[0]
        return Drafts(*(np.concatenate(arrays) for arrays in zip(
            *((part.token_ids, part.confidence) for part in parts), strict=True)))

    def ahead(self, step: Pass, firsts: Sequence[SampleRow], inputs: StepInputs, tokens: Any,
              kv_cache: Any) -> None:
        """As Shadow.ahead: the next pass, of the sequences of a verify step."""
        self._ahead = None
        if self._inputs is None or len(step.pieces) > AT_ONCE:
            return
        places = tuple(Place(-1, piece.position, piece.position + piece.num_rows,
                             piece.span.sliding_pages, piece.span.full_pages)
                       for piece in step.pieces)
        self._ahead = self._send(places, firsts, kv_cache, (inputs, tokens))
        self.num_ahead += 1

    def launches(self, num_drafts: int, kv_cache: Any) -> Callable[[], None]:
        """What enqueues a pass for one sequence, for benchmarks; its inputs are the last ones."""
        inputs, steps = self._inputs, self.network.steps(num_drafts)
        assert inputs is not None
        choose = partial(self._picks.choose, Needs.of([]), inputs.records)
        return lambda: self.network.launch(inputs, choose, 1, steps, kv_cache)

    def _send(self, places: tuple[Place, ...], firsts: Sequence[SampleRow], kv_cache: Any,
              verified: tuple[StepInputs, Any] | None) -> _Sent:
        """Enqueue a pass; verified: the step whose tokens say where its sequences stand."""
        inputs, picks, stream = self._inputs, self._picks, self._stream
        assert inputs is not None, 'the drafter has no cache'
        count, steps = bucket(len(places)), self._steps
        layout = self.network.layout(count, steps)
        needs, records = picks.send(firsts, [place.position for place in places], count, layout)
        place = inputs.send(places, records)
        if verified is not None and verified[0] is not self._behind:
            self._behind = verified[0]
            self.graphs = Graphs(stream, self.graphs.enabled)

        def work() -> None:
            inputs.take(records.shape[0])
            if verified is not None:
                step, tokens = verified
                draft_accept(inputs.ids[:count * inputs.ids_stride], inputs.starts[:count],
                             picks.newest[:count], inputs.spans[:count], inputs.records,
                             step.token_ids, tokens, step.spans[:count], layout, stream)
            self.network.launch(inputs, partial(picks.choose, needs, inputs.records), count,
                                steps, kv_cache)
            picks.leave(self._slots)

        try:
            self.graphs.run((count, steps, needs, verified is not None), work)
        except Exception:
            self._slots.failed()
            raise
        return _Sent(places, count, steps, self._slots.results[place], self._slots.enqueued())

    def _read(self, sent: _Sent, longest: int) -> Drafts:
        """Wait for the drafts of a pass."""
        sent.event.synchronize()
        ids, confidence = self._picks.read(sent.result)
        network, sizes = self.network, (sent.num_sequences, sent.num_steps)
        count = len(sent.places)
        tokens = network.drafts(ids, *sizes)[:count, :longest]
        shares = network.drafts(confidence, *sizes)[:count, :longest]
        return Drafts(np.maximum(tokens, 0), np.where(tokens < 0, np.float32(0), shares))

    def _take_ahead(self, spans: Sequence[DraftSpan], longest: int) -> Drafts | None:
        """The drafts that were enqueued early, if they are of these sequences and long enough."""
        sent, self._ahead = self._ahead, None
        if sent is None or sent.num_steps < self._steps:
            return None
        drafts = self._read(sent, longest)
        newest = self._picks.read_newest(sent.result)[:len(sent.places)]
        rows = []
        for span in spans:
            row = next((b for b, place in enumerate(sent.places) if place.is_of(span)
                        and tuple(newest[b].tolist()) == (span.token_id, span.position)), None)
            if row is None:
                return None
            rows.append(row)
        self.num_ahead_used += 1
        return Drafts(drafts.token_ids[rows], drafts.confidence[rows])
