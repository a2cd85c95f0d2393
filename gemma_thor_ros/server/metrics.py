# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: Prometheus figures of the engine, of every request and of the endpoint.

Names are vLLM's where it has one for the same thing, and llama.cpp's beside it for the few that
its dashboards read; the rest begin with gemma_thor:. docs/http.md lists them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.engine.stats import EngineStats
from gemma_thor_ros.load import Runtime, State
from gemma_thor_ros.schema import ChatRequest, ChatResult, ErrorCode, FinishReason

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
            7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)  # fmt: skip
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                 0.75, 1.0, 2.5, 5.0, 10.0)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# How we name an end -> what vLLM calls it.
_FINISHED = {FinishReason.CANCELLED: 'abort'}


class Metrics:
    """The figures of one runtime; starts to count when its model is loaded."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._registry = CollectorRegistry()
        self._chat: Chat | None = None
        self._make()
        self._registry.register(_EngineFigures(runtime))
        self._inter_token = _InterTokenLatency()
        self._registry.register(self._inter_token)
        runtime.on_change(self._attach)
        self._attach()

    def page(self) -> bytes:
        """Return all figures in Prometheus' text form."""
        return generate_latest(self._registry)

    def count_response(self, path: str, status: int) -> None:
        """Count an HTTP answer."""
        self._responses.labels(path, str(status)).inc()

    def on_step(self, seconds: float, tokens: int) -> None:
        """Note the time between two steps of an HTTP answer, a share for each token."""
        self._inter_token.add(seconds / tokens, tokens)

    def _make(self) -> None:
        registry = self._registry

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, registry=registry, buckets=buckets)

        self._success = Counter(
            'vllm:request_success',
            'Requests that ended with an answer, by how it ended.',
            ['finished_reason'],
            registry=registry,
        )
        self._failed = Counter(
            'gemma_thor:request_failed',
            'Requests that ended with an error, by its code.',
            ['code'],
            registry=registry,
        )
        self._by_front_end = Counter(
            'gemma_thor:requests', 'Requests that ended.', ['front_end'], registry=registry
        )
        self._responses = Counter(
            'gemma_thor:http_responses', 'HTTP answers.', ['path', 'status'], registry=registry
        )
        self._tool_calls = Counter(
            'gemma_thor:tool_calls',
            'Tool calls of the model; repaired ones are shown and never executed.',
            ['repaired'],
            registry=registry,
        )
        self._drafts = Counter(
            'vllm:spec_decode_num_drafts', 'Draft-verify rounds.', registry=registry
        )
        self._drafted = Counter(
            'vllm:spec_decode_num_draft_tokens', 'Drafted tokens.', registry=registry
        )
        self._accepted = Counter(
            'vllm:spec_decode_num_accepted_tokens',
            'Drafted tokens that were kept, the bonus token of a round not counted.',
            registry=registry,
        )
        self._first_token = histogram(
            'vllm:time_to_first_token_seconds', 'From arrival to the first token.', _SECONDS
        )
        self._per_token = histogram(
            'vllm:request_time_per_output_token_seconds',
            'Mean time of a token after the first.',
            _STEP_SECONDS,
        )
        self._latency = histogram(
            'vllm:e2e_request_latency_seconds', 'From arrival to the end.', _SECONDS
        )
        self._queue = histogram('vllm:request_queue_time_seconds', 'Waiting.', _SECONDS)
        self._prefill = histogram('vllm:request_prefill_time_seconds', 'Prefill.', _SECONDS)
        self._decode = histogram('vllm:request_decode_time_seconds', 'Decode.', _SECONDS)
        self._prompt_tokens = histogram(
            'vllm:request_prompt_tokens', 'Prompt tokens of a request.', _TOKENS
        )
        self._generation_tokens = histogram(
            'vllm:request_generation_tokens', 'Generated tokens of a request.', _TOKENS
        )

    def _attach(self) -> None:
        chat = self._runtime.chat
        if chat is not None and chat is not self._chat and self._runtime.state is State.READY:
            self._chat = chat
            chat.on_result(self._on_result)

    def _on_result(self, request: ChatRequest, result: ChatResult) -> None:
        usage, timings = result.usage, result.timings
        self._by_front_end.labels(request.front_end).inc()
        if result.code in (ErrorCode.NONE, ErrorCode.CANCELLED):
            reason = _FINISHED.get(result.finish_reason, str(result.finish_reason))
            self._success.labels(reason).inc()
        else:
            self._failed.labels(result.code.name.lower()).inc()
        for call in result.tool_calls:
            self._tool_calls.labels(str(call.repaired).lower()).inc()
        self._drafts.inc(usage.rounds)
        self._drafted.inc(usage.drafted_tokens)
        self._accepted.inc(usage.accepted_tokens)
        self._latency.observe(timings.total_ms / 1e3)
        self._queue.observe(timings.queued_ms / 1e3)
        self._prompt_tokens.observe(usage.prompt_tokens)
        self._generation_tokens.observe(usage.completion_tokens)
        if usage.completion_tokens:
            self._first_token.observe(timings.time_to_first_token_ms / 1e3)
            self._prefill.observe(timings.prefill_ms / 1e3)
            self._decode.observe(timings.decode_ms / 1e3)
        if usage.completion_tokens > 1:
            self._per_token.observe(timings.decode_ms / 1e3 / (usage.completion_tokens - 1))


class _InterTokenLatency:
    """A histogram for one writer, the event loop: it counts each token, so it has to be quick."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_STEP_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """Count some tokens that took so long each."""
        self._counts[bisect.bisect_left(_STEP_SECONDS, seconds)] += tokens
        self._sum += seconds * tokens

    def collect(self) -> Iterator[Metric]:
        bounds = [*(str(bound) for bound in _STEP_SECONDS), '+Inf']
        buckets = list(zip(bounds, itertools.accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(
            'vllm:inter_token_latency_seconds',
            'Between tokens as an HTTP client gets them.',
            buckets,
            self._sum,
        )


class _EngineFigures:
    """Asks the engine for its figures whenever the page is made."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        chat = self._runtime.chat
        ready = self._runtime.state is State.READY and chat is not None
        yield _gauge('gemma_thor:ready', 'Whether requests are served.', float(ready))
        yield _gauge('gemma_thor:load_progress', 'Of the load, 0 to 1.', self._runtime.progress)
        if chat is None:
            return
        info = chat.model_info()
        labels = {'model_name': info.name, 'weights': info.weights_format, 'device': info.device}
        family = GaugeMetricFamily('gemma_thor:model', 'What is loaded.', labels=list(labels))
        family.add_metric(list(labels.values()), 1.0)
        yield family
        yield from _of_stats(chat.stats())


def _of_stats(stats: EngineStats) -> Iterator[Metric]:
    used = stats.full_pages_used / max(1, stats.full_pages_total)
    sliding = stats.sliding_pages_used / max(1, stats.sliding_pages_total)
    gauges: tuple[tuple[str, str, float], ...] = (
        ('vllm:num_requests_running', 'Requests that hold pages.', stats.running),
        ('vllm:num_requests_waiting', 'Requests that wait for pages.', stats.waiting),
        ('vllm:kv_cache_usage_perc', 'Used share of the KV pages, 0 to 1.', max(used, sliding)),
        ('gemma_thor:full_pages_used', 'Pages of full attention in use.', stats.full_pages_used),
        ('gemma_thor:full_pages', 'Pages of full attention.', stats.full_pages_total),
        ('gemma_thor:sliding_pages_used', 'Sliding pages in use.', stats.sliding_pages_used),
        ('gemma_thor:sliding_pages', 'Sliding pages.', stats.sliding_pages_total),
        ('gemma_thor:full_pages_cached', 'Pages kept for reuse.', stats.full_pages_cached),
        ('gemma_thor:sliding_pages_cached', 'The same, sliding.', stats.sliding_pages_cached),
        ('gemma_thor:checkpoints', 'Prefixes that can be gone on from.', stats.checkpoints),
        ('gemma_thor:last_step_seconds', 'Time of the last step.', stats.last_step_ms / 1e3),
        ('llamacpp:requests_processing', 'Requests that hold pages.', stats.running),
        ('llamacpp:requests_deferred', 'Requests that wait.', stats.waiting),
        ('llamacpp:kv_cache_usage_ratio', 'Used share of the KV pages.', max(used, sliding)),
        ('llamacpp:prompt_tokens_seconds', 'Prompt tokens/s.', stats.prefill_tokens_per_s),
        ('llamacpp:predicted_tokens_seconds', 'Generated tokens/s.', stats.decode_tokens_per_s),
    )
    counters: tuple[tuple[str, str, float], ...] = (
        ('vllm:prompt_tokens', 'Prompt tokens, cached ones included.', stats.prompt_tokens),
        ('vllm:prefix_cache_queries', 'Prompt tokens that were looked up.', stats.prompt_tokens),
        ('vllm:prefix_cache_hits', 'Prompt tokens that were cached.', stats.cached_prompt_tokens),
        ('vllm:generation_tokens', 'Generated tokens.', stats.decode_tokens),
        ('gemma_thor:steps', 'Steps of the engine.', stats.steps),
        ('gemma_thor:plain_rounds', 'Rounds in which no draft paid.', stats.plain_rounds),
        ('gemma_thor:draft_trials', 'Rounds that tried more drafts.', stats.draft_trials),
        ('gemma_thor:draft_seconds', 'Time in the drafter.', stats.draft_ms / 1e3),
        ('llamacpp:prompt_tokens', 'Prompt tokens that were computed.', stats.prefill_tokens),
        ('llamacpp:tokens_predicted', 'Generated tokens.', stats.decode_tokens),
        ('llamacpp:n_decode', 'Steps of the engine.', stats.steps),
    )
    by_position: Any = CounterMetricFamily(
        'vllm:spec_decode_num_accepted_tokens_per_pos',
        'Drafted tokens that were kept, by position from 0 on.',
        labels=['position'],
    )
    for position, count in enumerate(stats.accepted_by_position):
        by_position.add_metric([str(position)], count)
    yield by_position
    for name, text, value in gauges:
        yield _gauge(name, text, value)
    for name, text, value in counters:
        family: Any = CounterMetricFamily(name, text)
        family.add_metric([], value)
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
