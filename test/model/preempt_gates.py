# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""preempted == undisturbed as functions, for any model: each gives the differences it found.

The engine is stepped by hand, so that a request comes in at exactly the step that is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from engine_books import check_books
from engine_gates import Answer, Job, differences, poison, read, solo

from gemma_thor_ros.engine import Engine, Outbox
from gemma_thor_ros.models.batch import Batch, Role
from gemma_thor_ros.schema import Priority, Request

LIMIT = 10_000                           # steps; more means that nothing moves


class Watched:
    """A model that notes what each step asks of it, and for whom: (role, rows, start) by step."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        self.vocab_size = model.vocab_size
        self.new_kv_cache = model.new_kv_cache
        self.vision = getattr(model, 'vision', None)
        self.steps: list[list[tuple[Role, int, int]]] = []

    def forward(self, batch: Batch, kv_cache: Any, *tap: Any) -> Any:
        self.steps.append([(s.role, s.num_rows, s.start_position) for s in batch.spans])
        return self.model.forward(batch, kv_cache, *tap)


class Stepped:
    """An engine without a thread, whose freed pages are poisoned and whose books are checked."""

    def __init__(self, model: Any, **options: Any) -> None:
        settings = {'page_size': 8, 'num_sliding_pages': 300, 'num_full_pages': 600,
                    'max_sequences': 8, 'max_waiting': 1000, 'prefill_chunk': 64,
                    'context_length': 2048, 'max_rows': 16, 'stop_ids': (), **options}
        self.model = Watched(model)
        self.engine = Engine(self.model, on_pages_freed=lambda geometry, pages: poison(
            self.engine.kv_cache, geometry, pages), **settings)
        self.engine.start(threaded=False)
        self.outboxes: dict[str, Outbox] = {}
        self.answers: dict[str, Answer] = {}

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.outboxes[request.request_id] = self.engine.submit(request)

    def step(self, count: int = 1) -> bool:
        """Run some steps; False when there was nothing left to run."""
        going = all(self.engine.step() for _ in range(count))
        scheduler = self.engine._scheduler
        held = [*scheduler.running, *scheduler.paused]
        check_books(self.engine._pages, self.engine._cache, [s.pages for s in held])
        return going

    def finish(self) -> dict[str, Answer]:
        """Run to the end; gives all answers not read yet."""
        for _ in range(LIMIT):
            if not self.engine.step():
                break
        else:
            raise AssertionError(f'still busy after {LIMIT} steps: {self.engine.stats()}')
        self.answers |= {name: read(box) for name, box in self.outboxes.items()
                         if name not in self.answers}
        assert self.engine.stats().full_pages_used == self.engine.stats().sliding_pages_used == 0
        return self.answers

    def close(self) -> None:
        self.engine.stop()


def with_priority(request: Request, priority: Priority) -> Request:
    return replace(request, priority=priority)


def preempt_gate(model: Any, victim: Request, intruder: Request, steps: Iterable[int], *,
                 expect: Callable[[Stepped], bool], reference: Any = None,
                 **options: Any) -> list[str]:
    """The answer of a request that loses its place at step k equals the undisturbed one.

    For each k on an engine of its own. `expect` tells from the engine's figures afterwards
    whether it happened as the gate means it.
    """
    fixed = {name: options[name] for name in ('page_size', 'context_length', 'max_image_tokens')
             if name in options}
    victim = with_priority(victim, Priority.BACKGROUND)
    intruder = with_priority(intruder, Priority.OPERATOR)
    jobs = [Job(victim), Job(intruder)]
    whole = solo(reference or model, jobs, **{'stop_ids': (), **fixed})
    lines = []
    for k in steps:
        stepped = Stepped(model, **{'max_sequences': 1, **options})
        stepped.submit(victim)
        stepped.step(k)
        stepped.submit(intruder)
        found = stepped.finish()
        lines += [f'at {k}: {line}' for line in differences(found, whole, jobs)]
        if not expect(stepped):
            lines.append(f'at {k}: not as meant: {stepped.engine.stats()}')
        stepped.close()
    return lines


def paused_once(stepped: Stepped) -> bool:
    stats = stepped.engine.stats()
    return (stats.preemptions, stats.drops) == (1, 0)


def dropped_once(stepped: Stepped) -> bool:
    """Dropped, and computed again by the right rows: prompt as prompt, answer 16 at a time."""
    stats = stepped.engine.stats()
    return (stats.preemptions, stats.drops) == (1, 1)


def every_step_gate(model: Any, victim: Request, intruder: Request, **options: Any) -> list[str]:
    """A request that is dropped again after every single token still gives the same answer."""
    fixed = {name: options[name] for name in ('page_size', 'context_length', 'max_image_tokens')
             if name in options}
    victim = with_priority(victim, Priority.BACKGROUND)
    stepped = Stepped(model, **{'max_sequences': 1, **options})
    stepped.submit(victim)
    jobs = [Job(victim)]
    sequence = stepped.engine._requests.get(victim.request_id)
    assert sequence is not None
    generated = -1
    while not stepped.outboxes[victim.request_id].finished:
        if sequence.num_generated > generated:           # it got on by a token: take its place
            generated = sequence.num_generated
            jobs.append(Job(replace(intruder, request_id=f'intruder{generated}',
                                    priority=Priority.OPERATOR)))
            stepped.submit(jobs[-1].request)
        stepped.step()
    found = stepped.finish()
    lines = differences({victim.request_id: found[victim.request_id]}, solo(
        model, jobs[:1], **{'stop_ids': (), **fixed}), jobs[:1])
    if stepped.engine.stats().drops < victim.sampling.max_tokens - 1:
        lines.append(f'{stepped.engine.stats().drops} drops only')
    stepped.close()
    return lines
