# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""From settings to a running chat: the only place that knows every part.

`Runtime.start` checks what can be checked in a moment (files, headers, admission) and loads the
rest in a thread, so that a node stays responsive. Knows no ROS and no HTTP.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gemma_thor_ros import __version__
from gemma_thor_ros.chat import Chat, ModelInfo
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.page_pool import plan_pages, window_pages
from gemma_thor_ros.load_device import (
    SETTING_UP,
    choose_device,
    load_cuda,
    load_drafter,
    warm_keys,
)
from gemma_thor_ros.load_drafter import DrafterChoice, FoundDrafter, find_drafter
from gemma_thor_ros.load_identity import kv_identity
from gemma_thor_ros.load_memory import Pages, choose_kv_dtype, kv_bytes, plan_memory
from gemma_thor_ros.load_text import TextBeside, argument_at, read_tokenizer
from gemma_thor_ros.load_vision import find_vision
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import ConfigError, ErrorCode, Request, RequestError, SamplingParams
from gemma_thor_ros.text.identity import template_hash
from gemma_thor_ros.text.segments import encode_segments, split_markers
from gemma_thor_ros.text.tokenizer import Tokenizer
from gemma_thor_ros.weights.canonical import Weight
from gemma_thor_ros.weights.checkpoint import Checkpoint, TextWeights, open_checkpoint
from gemma_thor_ros.weights.fingerprint import headers_hash

_log = logging.getLogger(__name__)

DEMO_FOLDER = Path(__file__).parent / 'demo' / 'model'
DEFAULT_CONTEXT = 65536  # when the model's own context is longer
DEFAULT_SCRIPT = ('This is the scripted model.<turn|>',)
_SCRIPTED_CONTEXT = 4096
_WARM_UP_TOKENS = 2


class State(str, Enum):
    """What a runtime is doing."""

    UNLOADED = 'unloaded'
    LOADING = 'loading'
    READY = 'ready'
    FAILED = 'failed'
    STOPPED = 'stopped'


class Runtime:
    """One engine and its chat, loaded in the background. Not restartable: make a new one."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._engine: Engine | None = None
        self._abort = threading.Event()
        self.state = State.UNLOADED
        self.progress = 0.0
        self.stage = ''
        self.error = ''
        self.chat: Chat | None = None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call back after each change of state, stage or progress, from the loading thread."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Check files, headers and admission, then load in a thread.

        Raises:
            ConfigError: at once, when the checkpoint can't be served; what only shows while
                loading is held in `error` and the state becomes FAILED.
        """
        if self.state is not State.UNLOADED:
            raise RuntimeError(f'the runtime is {self.state.value}; make a new one to load again')
        self._set(State.LOADING, 0.0, 'checking the checkpoint')
        try:
            plan = _plan(self._config)
        except ConfigError as error:
            self._fail(str(error))
            raise
        self._thread = threading.Thread(
            target=self._load, args=(plan,), name='gemma_thor_load', daemon=True
        )
        self._thread.start()

    def adopt(self, engine: Engine, chat: Chat) -> None:
        """Be READY with an engine that was made elsewhere, in place of `start`; for benchmarks."""
        self._engine, self.chat = engine, chat
        self._set(State.READY, 1.0, 'ready')

    @property
    def engine(self) -> Engine | None:
        """The engine once it runs; for benchmarks and diagnostics."""
        return self._engine

    def require_chat(self) -> Chat:
        """Return the chat.

        Raises:
            RequestError: NOT_READY with the reason.
        """
        chat = self.chat
        if self.state is State.READY and chat is not None:
            return chat
        reason = {
            State.LOADING: f'the model is loading: {self.stage}, {self.progress:.0%} done',
            State.FAILED: f'the model could not be loaded: {self.error}',
        }.get(self.state, f'the engine is {self.state.value}')
        raise RequestError(ErrorCode.NOT_READY, reason)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until loading has ended, either way; True when the state is READY."""
        with self._changed:
            self._changed.wait_for(lambda: self.state is not State.LOADING, timeout_s)
        return self.state is State.READY

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the load or the engine; every open request is answered. True when all has ended."""
        timeout_s = self._config['engine.stop_timeout'] if timeout_s is None else timeout_s
        limit = time.monotonic() + timeout_s
        self._abort.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        ended = self._thread is None or not self._thread.is_alive()
        if self._engine is not None:
            ended = self._engine.stop(max(0.1, limit - time.monotonic())) is not False and ended
        if self.chat is not None:
            self.chat.close()
        self._set(State.STOPPED, self.progress, '')
        return ended

    def _load(self, plan: _Plan) -> None:
        started = time.monotonic()
        text = TextBeside(plan.read_tokenizer, plan.info.stop_ids)
        try:

            def report(progress: float, stage: str) -> None:
                self._report(progress, stage)
                if stage not in SETTING_UP:
                    text.check()  # a file that is wrong ends the load at once

            model, engine_limits = plan.build(report)
            self._report(0.95, 'starting the engine')
            engine = Engine(model, **engine_limits)
            if isinstance(model, CudaGemma4):
                self._report(0.96, 'making graphs')
                model.warm_up(warm_keys(engine_limits['max_sequences'], model.prompt_rows))
            engine.calibrate()
            engine.start()
            self._engine = engine
            if plan.warm_up:
                _warm_up(engine)
            self._report(0.98, 'reading the tokenizer')
            tokenizer, grammars = text.result()
            self.chat = Chat(engine, tokenizer, plan.info, self._config, grammars)
        except _Aborted:
            return
        except (ConfigError, MemoryError, OSError) as error:
            self._fail(str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 (held for the client, whatever it is)
            _log.exception('loading failed')
            self._fail(f'{type(error).__name__}: {error}')
        else:
            _log.info('%s is ready after %.1f s', plan.info.name, time.monotonic() - started)
            self._set(State.READY, 1.0, 'ready')
        finally:
            text.close()

    def _report(self, progress: float, stage: str) -> None:
        if self._abort.is_set():
            raise _Aborted
        self._set(State.LOADING, progress, stage)

    def _fail(self, message: str) -> None:
        self.error = message
        _log.error('%s', message)
        self._set(State.FAILED, self.progress, 'failed')

    def _set(self, state: State, progress: float, stage: str) -> None:
        with self._changed:
            if self.state is State.STOPPED:
                return
            self.state, self.progress, self.stage = state, progress, stage
            self._changed.notify_all()
        for listener in list(self._listeners):
            listener()


class _Aborted(Exception):
    """The load is not wanted any more."""


Report = Callable[[float, str], None]


@dataclass(frozen=True)
class _Plan:
    """What a load will do, checked."""

    info: ModelInfo
    read_tokenizer: Callable[[], Tokenizer]  # takes a second on a vocabulary of 262,144
    build: Callable[[Report], tuple[Any, dict[str, Any]]]
    warm_up: bool = True


def _plan(config: EngineConfig) -> _Plan:
    if config['model.path'] == 'scripted':
        return _plan_scripted(config)
    folder = (
        DEMO_FOLDER if config['model.path'] == 'demo' else Path(config['model.path']).expanduser()
    )
    checkpoint = open_checkpoint(folder)
    try:
        model_config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    except ConfigError as error:
        raise ConfigError(f'{folder / "config.json"}: {error}') from error
    weights = checkpoint.text_weights()
    if not (folder / 'tokenizer.json').is_file():
        raise ConfigError(f'{folder / "tokenizer.json"}: no such tokenizer file')
    context = _context_length(config, model_config.max_position_embeddings)
    device = choose_device(
        config['engine.device'], model_config, weights, config['engine.page_size']
    )
    kv_dtype = choose_kv_dtype(config, device)
    drafter = _find_drafter(config, folder, model_config, device)
    vision = find_vision(checkpoint, model_config, device, config['image.soft_tokens'])
    if vision.info.reason:
        _log.warning('images will be refused: %s', vision.info.reason)
    pages = plan_memory(
        config, model_config, context, drafter, kv_dtype, device, vision.info.soft_tokens
    )
    info = ModelInfo(
        name=config['model.name'] or ('demo' if config['model.path'] == 'demo' else folder.name),
        path=folder.name,
        family=checkpoint.config.get('model_type', ''),
        weights_format=_format_name(checkpoint),
        num_parameters=model_config.num_parameters,
        vocab_size=model_config.vocab_size,
        context_length=context,
        max_context_length=model_config.max_position_embeddings,
        kv_dtype=kv_dtype,
        max_sequences=config['engine.max_sequences'],
        device=device,
        variant=_variant(config, model_config),
        thinking=config['model.thinking'],
        stop_ids=model_config.stop_ids,
        facts={
            'engine_version': __version__,
            'weights_hash': headers_hash(folder),
            'template_hash': template_hash(_variant(config, model_config)),
            'sliding_pages': pages.sliding,
            'full_pages': pages.full,
            'drafter': drafter.config.name if drafter else 'none',
            'vision': vision.part is not None,
            'no_vision': vision.info.reason,
        },
        vision=vision.info,
        kv_identity=kv_identity(folder, kv_dtype, device, _variant(config, model_config), drafter),
    )

    def build(report: Report) -> tuple[Any, dict[str, Any]]:
        limits = _engine_limits(
            config, context, pages, model_config.stop_ids, model_config.suppress_tokens
        )
        limits['max_image_tokens'] = vision.info.soft_tokens
        if kv_dtype != 'float32' and device == 'cuda':
            cuda_model = load_cuda(
                model_config,
                checkpoint,
                weights,
                context_length=context,
                page_size=config['engine.page_size'],
                kv_dtype=kv_dtype,
                kv_bytes=kv_bytes(config, model_config, pages, kv_dtype, device, drafter),
                nvfp4_head=config['engine.nvfp4_head'],
                graphs=config['engine.graphs'],
                num_threads=config['engine.threads'] or min(8, os.cpu_count() or 1),
                prompt_rows=min(2048, config['engine.prefill_chunk']),
                report=report,
                facts=info.facts,
                vision=vision,
            )
            if drafter is not None:
                report(0.9, 'reading the drafter')
                limits['drafter'] = load_drafter(
                    drafter,
                    cuda_model,
                    context_length=context,
                    page_size=config['engine.page_size'],
                    nvfp4_head=config['engine.nvfp4_head'],
                    num_threads=config['engine.threads'] or min(8, os.cpu_count() or 1),
                )
                limits['num_drafts'] = _num_drafts(config)
            report(0.94, 'laying out the KV cache')
            return cuda_model, limits
        source = _Watched(weights, lambda share: report(0.9 * share, 'reading weights'))
        model = Gemma4(
            model_config,
            source,
            dtype=np.float32,
            kv_dtype=kv_dtype,
            weight_budget_bytes=int(config['engine.weight_memory'] * 2**30),
            decode_threads=config['engine.threads'] or 1,
            prefill_threads=config['engine.threads'] or 1,
            vision=vision.part,
        )
        if drafter is not None:
            report(0.9, 'reading the drafter')
            limits['drafter'] = drafter.make(model, config['engine.threads'] or 1)
            limits['num_drafts'] = _num_drafts(config)
        report(0.94, 'laying out the KV cache')
        return model, limits

    return _Plan(info, lambda: read_tokenizer(folder, model_config.vocab_size), build)


def _plan_scripted(config: EngineConfig) -> _Plan:
    tokenizer = Tokenizer.from_folder(DEMO_FOLDER)
    texts = tuple(config['model.script']) or DEFAULT_SCRIPT
    answers = [encode_segments(split_markers(text), tokenizer) for text in texts]
    turns = itertools.cycle(answers)  # a warm-up would take the first one
    context = _context_length(config, _SCRIPTED_CONTEXT)
    model = ScriptedModel(
        lambda prompt: next(turns),
        tokenizer.vocab_size,
        step_delay_s=config['model.script_delay'],
        must_follow=partial(argument_at, tokenizer),
    )
    sliding, full = plan_pages(
        context,
        config['engine.max_sequences'],
        page_size=config['engine.page_size'],
        window=model.config.sliding_window,
        prefill_chunk=config['engine.prefill_chunk'],
    )
    window = window_pages(config['engine.page_size'], model.config.sliding_window)
    checkpoints = config['engine.max_checkpoints'] * window
    pages = Pages(sliding + checkpoints, full, checkpoints)
    info = ModelInfo(
        name=config['model.name'] or 'scripted',
        path='scripted',
        family='scripted',
        weights_format='none',
        num_parameters=0,
        vocab_size=tokenizer.vocab_size,
        context_length=context,
        max_context_length=_SCRIPTED_CONTEXT,
        kv_dtype='none',
        max_sequences=config['engine.max_sequences'],
        device='cpu',
        variant=_variant(config),
        thinking=config['model.thinking'],
        stop_ids=(1, 50, 106),
        facts={
            'engine_version': __version__,
            'weights_hash': '',
            'template_hash': template_hash(_variant(config)),
        },
        kv_identity={'engine': __version__, 'weights': 'scripted'},
    )

    def build(report: Report) -> tuple[Any, dict[str, Any]]:
        started = time.monotonic()
        total = config['model.script_load']
        while (passed := time.monotonic() - started) < total:
            report(0.9 * passed / total, 'reading the script')
            time.sleep(min(0.05, total))
        return model, _engine_limits(config, context, pages, info.stop_ids, ())

    return _Plan(info, lambda: tokenizer, build, warm_up=False)


def _engine_limits(
    config: EngineConfig,
    context: int,
    pages: Pages,
    stop_ids: tuple[int, ...],
    suppress_tokens: tuple[int, ...],
) -> dict[str, Any]:
    return {
        'page_size': config['engine.page_size'],
        'num_sliding_pages': pages.sliding,
        'num_full_pages': pages.full,
        'max_checkpoint_pages': pages.checkpoints,
        'checkpoint_interval': max(
            1, config['engine.checkpoint_interval'] // config['engine.page_size']
        ),
        'max_sequences': config['engine.max_sequences'],
        'max_waiting': config['engine.max_waiting'],
        'prefill_chunk': config['engine.prefill_chunk'],
        'context_length': context,
        'step_timeout_s': config['engine.step_timeout'],
        'stop_ids': stop_ids,
        'suppress_tokens': suppress_tokens,
    }


def _context_length(config: EngineConfig, longest: int) -> int:
    asked = int(config['engine.context_length'])
    if asked > longest:
        raise ConfigError(
            f'engine.context_length is {asked:,}, the model takes at most {longest:,} tokens'
        )
    return asked or min(longest, DEFAULT_CONTEXT)


def _find_drafter(
    config: EngineConfig, folder: Path, model: ModelConfig, device: str
) -> FoundDrafter | None:
    choice: DrafterChoice = config['speculation.drafter']
    if config['speculation.num_drafts'] == 0:
        choice = 'none'
    return find_drafter(
        choice,
        config['speculation.drafter_path'],
        folder,
        model,
        block_mask=config['speculation.block_mask'],
        position=config['speculation.mtp_position'],
        device=device,
    )


def _num_drafts(config: EngineConfig) -> int | None:
    asked = int(config['speculation.num_drafts'])
    return None if asked < 0 else asked


def _variant(
    config: EngineConfig, model: ModelConfig | None = None
) -> Literal['large', 'small']:
    asked: Literal['auto', 'large', 'small'] = config['model.variant']
    if asked != 'auto':
        return asked
    return model.prompt_variant if model else 'large'


def _format_name(checkpoint: Checkpoint) -> str:
    quantization = checkpoint.config.get('quantization_config')
    if not isinstance(quantization, Mapping):
        return 'bf16'
    if 'quant_method' not in quantization and 'group_size' in quantization:
        return f'mlx ({quantization.get("bits")} bits, groups of {quantization["group_size"]})'
    return f'nvfp4 ({quantization.get("quant_method", "unknown")})'


def _warm_up(engine: Engine) -> None:
    """Run one short request, so that the first client does not pay for first-time work."""
    sampling = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS)
    engine.submit(Request('warm-up', (2, 105, 107, 106), sampling)).collect(60.0)


class _Watched(Mapping[str, Weight]):
    """Weights by name that tell how many of them have been read."""

    def __init__(self, weights: TextWeights, report: Callable[[float], None]) -> None:
        self._weights = weights
        self._report = report
        self._read = 0

    def __getitem__(self, name: str) -> Weight:
        weight = self._weights[name]
        self._read += 1
        self._report(min(1.0, self._read / len(self._weights)))
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
