# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A model of E2B's form in MLX weights, from the folder to the answers of several users."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.load_device import unfit
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Decoder
from gemma_thor_ros.schema import ChatRequest, ConfigError
from gemma_thor_ros.weights import presets
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.synth import write_synthetic


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp('small') / 'tiny-e2b'
    with pytest.MonkeyPatch.context() as patch:      # as many tokens as the demo's tokenizer has
        for size in ('vocab_size', 'vocab_size_per_layer_input'):
            patch.setitem(presets._SIZES['tiny-e2b'], size, 4096)
        write_synthetic(made, 'tiny-e2b', 'mlx-4bit-g32', 1)
    shutil.copy(DEMO_FOLDER / 'tokenizer.json', made)
    return made


def start(folder: Path, **settings: Any) -> Runtime:
    runtime = Runtime(EngineConfig.from_mapping({
        'model.path': str(folder), 'engine.device': 'cpu', 'engine.context_length': 1024,
        **settings}))
    runtime.start()
    assert runtime.wait_ready(30.0), runtime.error
    return runtime


@pytest.fixture(scope='module')
def chat(folder: Path) -> Iterator[Chat]:
    runtime = start(folder)
    yield runtime.require_chat()
    runtime.stop()


def request(text: str) -> ChatRequest:
    return ChatRequest(({'role': 'user', 'content': text},),
                       sampling={'temperature': 0.0, 'max_tokens': 12})


def test_the_prompt_is_that_of_the_small_variant(chat: Chat, folder: Path) -> None:
    """No empty thought is prefilled, unless the setting asks for the large models' prompt."""
    assert chat.model_info().variant == 'small'
    assert chat.model_info().weights_format == 'mlx (4 bits, groups of 32)'
    assert chat.render_prompt(request('Go.')).text.endswith('<|turn>model\n')
    forced = start(folder, **{'model.variant': 'large'})
    text = forced.require_chat().render_prompt(request('Go.')).text
    forced.stop()
    assert text.endswith('<|turn>model\n<|channel>thought\n<channel|>')


def test_answers_do_not_depend_on_company_or_prefix(chat: Chat) -> None:
    texts = ['Drive to the dock.', 'What do you see?', 'Drive to the dock. ' * 20]
    alone = [chat.submit(request(text)).result(30.0) for text in texts]
    together = [chat.submit(request(text)) for text in texts]
    again = [stream.result(30.0) for stream in together]
    assert again[2].usage.cached_tokens > 0
    assert [result.text for result in again] == [result.text for result in alone]
    assert len({result.text for result in alone}) == 3


def test_cuda_says_why_it_does_not_take_a_model(folder: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder)
    config = ModelConfig.from_dict(checkpoint.config)
    assert '(E2B, E4B)' in unfit(config, checkpoint.text_weights(), 16)
    write_synthetic(tmp_path, 'tiny-moe', 'mlx-8bit-g32', 1)
    checkpoint = open_checkpoint(tmp_path)
    config = ModelConfig.from_dict(checkpoint.config)
    assert 'head_dim 16' in unfit(config, checkpoint.text_weights(), 16)     # affine runs there


def test_a_device_without_these_ops_refuses_by_name(folder: Path) -> None:
    class OtherLoader:
        def __getattr__(self, name: str) -> Any:
            if name == 'rows_table':
                raise AttributeError(name)
            return lambda *args: None

    checkpoint = open_checkpoint(folder)
    config = ModelConfig.from_dict(checkpoint.config)
    with pytest.raises(ConfigError, match=r'\(E2B, E4B\) run on the CPU alone'):
        Decoder(config, checkpoint.text_weights(), OtherLoader())
