# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every user setting once: name, type, default, range, unit, meaning.

ROS parameters, command-line flags and the table in docs/settings.md are made from SETTINGS. Knows
no ROS and no argparse; reads no environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Union

from gemma_thor_ros.schema import ConfigError

Value = Union[bool, int, float, str, 'list[str]']


@dataclass(frozen=True)
class Setting:
    """One setting. `minimum` and `maximum` are inclusive; `choices` empty means free."""

    name: str
    default: Value
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ''
    choices: tuple[str, ...] = ()
    read_only: bool = True  # fixed after configure; only the others may change while active

    @property
    def type_name(self) -> str:
        """'bool', 'int', 'float', 'str' or 'list'."""
        return type(self.default).__name__


def _s(
    name: str,
    default: Value,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    unit: str = '',
    choices: tuple[str, ...] = (),
    live: bool = False,
) -> Setting:
    return Setting(name, default, doc, minimum, maximum, unit, choices, not live)


PRIORITIES = ('background', 'agent', 'dialogue', 'operator')

SETTINGS: tuple[Setting, ...] = (
    _s(
        'model.path',
        'demo',
        "Checkpoint folder; 'demo' is the small model in the package, 'scripted' "
        'the test model that repeats model.script.',
    ),
    _s('model.name', '', 'Name that clients see; empty = the folder name.'),
    _s(
        'model.variant',
        'auto',
        "Prompt variant: 'large' closes the empty thought, 'small' does not.",
        choices=('auto', 'large', 'small'),
    ),
    _s('model.thinking', False, 'Let the model think unless a request says otherwise.', live=True),
    _s(
        'model.script',
        [],
        "Answers of the 'scripted' model as raw text, one a request, repeated from "
        'the first after the last.',
    ),
    _s(
        'model.script_delay', 0.0, "Time of one step of the 'scripted' model.", 0.0, 10.0, unit='s'
    ),
    _s('model.script_load', 0.0, "Time that loading the 'scripted' model takes.", 0.0, 600.0,
       unit='s'),
    _s(
        'engine.device',
        'auto',
        "Where the model runs; 'auto' is CUDA where there is a device that can run it.",
        choices=('auto', 'cpu', 'cuda'),
    ),
    _s(
        'engine.nvfp4_head',
        False,
        'On CUDA, requantise the output table to NVFP4: a quarter of its bytes at every step, and '
        'slightly other logits.',
    ),
    _s('engine.graphs', True, 'On CUDA, run generated rows as graphs; the tokens are the same.'),
    _s(
        'engine.context_length', 0,
        "Tokens of prompt and answer together; 0 = the model's own, at most 65,536.", 0, 262144,
        unit='tokens'
    ),
    _s('engine.max_sequences', 8, 'Sequences that step together.', 1, 64),
    _s('engine.max_waiting', 64, 'Requests that may wait; one more is answered BUSY.', 0, 10000),
    _s('engine.page_size', 16, 'Positions of one KV page.', 1, 256, unit='tokens'),
    _s(
        'engine.kv_dtype',
        'auto',
        "Type that K and V are rounded to; 'auto' is float32 on the CPU, which stores 4 bytes "
        'whatever the type, and fp8 on CUDA.',
        choices=('auto', 'float32', 'bf16', 'fp8'),
    ),
    _s('engine.kv_memory', 1.0, 'Memory budget of the KV pages.', 0.001, 1024.0, unit='GiB'),
    _s(
        'engine.max_checkpoints', 16,
        'Prompt prefixes kept for reuse as far as engine.kv_memory allows; 0 = no prefix cache.',
        0, 10000
    ),
    _s(
        'engine.checkpoint_interval', 2048,
        'A long prompt can be resumed at its turn borders and every so many tokens.', 1, 262144,
        unit='tokens'
    ),
    _s(
        'engine.weight_memory', 4.0,
        'Budget for weights held decoded on the CPU; beyond it they are decoded at each use.', 0.0,
        1024.0, unit='GiB'
    ),
    _s('engine.prefill_chunk', 256, 'Prompt tokens of one step.', 1, 8192, unit='tokens'),
    _s('engine.threads', 0, 'Threads of the CPU matrix products; 0 = one.', 0, 256),
    _s(
        'engine.step_timeout', 60.0,
        'A step that takes longer fails its requests and is reported; 0 = no limit.', 0.0, 86400.0,
        unit='s'
    ),
    _s(
        'engine.stop_timeout', 5.0, 'Time to end the engine at shutdown.', 0.1, 600.0, unit='s'
    ),
    _s(
        'speculation.drafter', 'auto',
        "What guesses tokens for the model to verify; 'auto' is what the model has, dflash first.",
        choices=('auto', 'none', 'dflash', 'mtp')
    ),
    _s('speculation.drafter_path', '', "Its folder; empty = dflash/ or mtp/ in the model's own."),
    _s('speculation.num_drafts', -1, 'Drafts a round; -1 = as many as pay, 0 = none.', -1, 15),
    _s(
        'speculation.block_mask', 'auto',
        "What rows of a DFlash block see of later ones; 'auto' is nothing in sliding layers.",
        choices=('auto', 'causal', 'bidirectional')
    ),
    _s(
        'speculation.mtp_position', 'newest',
        'Rope position of MTP drafts: of the newest token or of the last key.',
        choices=('newest', 'last_key')
    ),
    _s('sampling.temperature', 1.0, 'Default temperature; 0 is greedy.', 0.0, 10.0, live=True),
    _s('sampling.top_k', 64, 'Default top-k; 0 = off.', 0, 1 << 20, live=True),
    _s('sampling.top_p', 0.95, 'Default top-p; 1 = off.', 0.0, 1.0, live=True),
    _s('sampling.min_p', 0.0, 'Default min-p; 0 = off.', 0.0, 1.0, live=True),
    _s(
        'sampling.repetition_penalty',
        1.0,
        'Default repetition penalty; 1 = off.',
        0.01,
        10.0,
        live=True,
    ),
    _s(
        'sampling.max_tokens',
        1024,
        'Default bound of an answer, thought included.',
        1,
        262144,
        unit='tokens',
        live=True,
    ),
    _s(
        'sampling.seed', -1, 'Default seed; -1 draws one for each request.', -1, 2.0**53, live=True
    ),
    _s(
        'request.timeout',
        300.0,
        'Longest time of a request, waiting included.',
        0.1,
        86400.0,
        unit='s',
        live=True,
    ),
    _s(
        'request.first_token_timeout',
        0.0,
        'Longest time to the first token of an answer, waiting included; 0 = no limit.',
        0.0,
        86400.0,
        unit='s',
        live=True,
    ),
    _s(
        'request.token_timeout',
        0.0,
        'Longest time between two tokens of an answer; 0 = no limit.',
        0.0,
        86400.0,
        unit='s',
        live=True,
    ),
    _s('request.max_messages', 1000, 'Messages of a request.', 1, 100000),
    _s('request.max_tools', 128, 'Tools of a request.', 0, 10000),
    _s('request.max_stop', 16, 'Stop strings of a request.', 0, 1000),
    _s('request.max_choices', 16, 'Answers to one request: n, times its prompts.', 1, 1000),
    _s('request.max_images', 16, 'Images of a request, history included.', 0, 1000),
    _s(
        'image.soft_tokens', 'auto',
        "Tokens of an image at most: more see finer. 'auto' is what the checkpoint says, 280.",
        choices=('auto', '70', '140', '280', '560', '1120'),
    ),
    _s('image.max_bytes', 64, 'Largest image file.', 1, 1024, unit='MiB'),
    _s('image.max_pixels', 32, 'Most pixels of an image file.', 1, 128, unit='2^20'),
    _s('image.max_ratio', 64.0, 'Longer side of an image over its shorter one.', 1.0, 1000.0),
    _s('session.ttl', 3600.0, 'A session unused for so long is forgotten; 0 = never.', 0.0, 1e9,
       unit='s'),
    _s(
        'session.max_tokens', 0,
        'Session history is trimmed at turn borders to stay below; 0 = half of the context.',
        0, 262144, unit='tokens',
    ),
    _s('session.folder', '', 'Folder for saved sessions; empty = sessions can not be saved.'),
    _s('session.max_cache', 2.0, 'Largest KV cache that is saved or restored with a session.',
       0.0, 1024.0, unit='GiB'),
    _s(
        'session.max_sessions',
        64,
        'Sessions kept; the least recently used idle one goes first.',
        1,
        100000,
    ),
    _s(
        'ros.token_rate',
        20.0,
        'Messages a second and request on ~/tokens at most; the first token goes '
        'out at once. 0 = one message a step.',
        0.0,
        1000.0,
        unit='Hz',
        live=True,
    ),
    _s(
        'ros.ask_timeout',
        60.0,
        'Time limit of ~/ask and ~/chat_once when the call names none.',
        0.1,
        86400.0,
        unit='s',
        live=True,
    ),
    _s(
        'ros.max_priority',
        'operator',
        'Highest class that ROS clients may ask for.',
        choices=PRIORITIES,
    ),
    _s(
        'ros.default_priority',
        'dialogue',
        'Class of ROS requests that name none.',
        choices=PRIORITIES,
    ),
    _s('ros.autostart', True, 'Configure at start and activate when the model is ready.'),
    _s('ros.system_prompt', '', 'System message of requests and sessions that bring none.'),
    _s(
        'ros.system_prompt_file',
        '',
        'Text file with it, in place of ros.system_prompt; read at configure.',
    ),
    _s(
        'ros.speech_units',
        True,
        'Say units, currencies and signs on ~/sentences in English words (docs/speech.md).',
        live=True,
    ),
    _s(
        'ros.prompt_policy',
        'queue',
        'What becomes of a message on ~/prompt while another one is answered.',
        choices=('queue', 'keep_last', 'interrupt'),
        live=True,
    ),
    _s(
        'ros.prompt_queue',
        8,
        "Messages on ~/prompt that may wait with 'queue'; one more is refused.",
        1,
        1000,
        live=True,
    ),
    _s(
        'ros.prompt_session',
        'prompt',
        'Session of the messages on ~/prompt; empty = each stands alone.',
        live=True,
    ),
    _s(
        'ros.image_max_age', 0.5,
        'Age limit of images from topics (ChatMessage.image_topics) when the message names none.',
        0.01, 3600.0, unit='s', live=True,
    ),
    _s(
        'ros.publish_http',
        False,
        'HTTP answers appear on ~/tokens, and on ~/requests when the audit is on.',
    ),
    _s('http.enabled', True, 'Serve the OpenAI-compatible endpoint.'),
    _s(
        'http.host', '127.0.0.1', 'Address to bind; beyond loopback http.api_key_file is required.'
    ),
    _s('http.port', 8000, 'Port to bind; 0 = a free one, which the log names.', 0, 65535),
    _s('http.api_key_file', '', 'File (mode 0600) with the API key; empty = none.'),
    _s(
        'http.allowed_hosts',
        [],
        'Host names accepted in the Host header besides the loopback ones and http.host.',
    ),
    _s('http.allowed_origins', [], 'Origins of web pages that may call the endpoint.'),
    _s('http.max_body', 16, 'Largest request body.', 1, 1024, unit='MiB'),
    _s(
        'http.max_priority',
        'agent',
        'Highest class that HTTP clients may ask for.',
        choices=PRIORITIES,
    ),
    _s(
        'http.keep_alive',
        5.0,
        'Time between keep-alive comments in a stream that has nothing to say.',
        0.1,
        600.0,
        unit='s',
    ),
    _s(
        'http.read_timeout',
        30.0,
        'A request whose head or body takes longer to arrive is dropped.',
        0.1,
        3600.0,
        unit='s',
    ),
    _s(
        'http.write_timeout',
        30.0,
        'An answer whose client takes nothing for so long is cancelled.',
        0.1,
        3600.0,
        unit='s',
    ),
    _s(
        'http.max_stored',
        256,
        'Answers of /v1/responses kept in memory for previous_response_id.',
        0,
        100000,
    ),
    _s(
        'tools.policy_file',
        '',
        "Tool policy (YAML); 'demo' is the demo robot's; empty = no tools.",
    ),
    _s(
        'tools.constrain_calls',
        True,
        'Hold a call that the model begins to the declared tools and their schemas.',
        live=True,
    ),
    _s('tools.dry_run', False, 'Check and report tool calls, never execute them.'),
    _s('tools.execute_prompts', False, 'Messages on ~/prompt may use the tools of the policy.'),
    _s('tools.max_rounds', 6, 'Generations of one agent loop at most.', 1, 255),
    _s(
        'tools.guard',
        'auto',
        "Name of the goal_guard node; 'auto' = goal_guard in this namespace.",
    ),
    _s('audit.enabled', False, 'Record each request on ~/requests and in audit.file.'),
    _s(
        'audit.file',
        '',
        'JSON lines, one a generation, appended; empty = ~/requests alone.',
    ),
    _s(
        'audit.max_file_mb', 100.0,
        'Size at which audit.file becomes audit.file.1 and a new one begins; 0 = never.',
        0.0, 1e6, unit='MB',
    ),
    _s('audit.max_files', 10, 'Files kept, the one in use included; the oldest goes.', 1, 10000),
    _s(
        'audit.redact',
        False,
        'Leave texts, tool arguments and token ids out of the records; their hashes stay.',
    ),
)

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


class EngineConfig:
    """Checked values of all settings: `config['engine.context_length']`.

    Raises:
        ConfigError: an unknown name, a wrong type, a value out of range; names the setting, the
            value and the limits.
    """

    def __init__(self, **values: Value) -> None:
        self._values: dict[str, Any] = {s.name: _copy(s.default) for s in SETTINGS}
        self.update(values)

    @classmethod
    def from_mapping(cls, values: dict[str, Value]) -> EngineConfig:
        """Make a configuration from dotted names; names that are absent keep their default."""
        config = cls()
        config.update(values)
        return config

    def update(self, values: dict[str, Value]) -> None:
        """Check and set several values; nothing is set when one is wrong."""
        checked = {name: check(name, value) for name, value in values.items()}
        self._values.update(checked)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def as_dict(self) -> dict[str, Value]:
        """Return all values by dotted name."""
        return {name: _copy(value) for name, value in self._values.items()}


def check(name: str, value: Any) -> Value:
    """Return `value` in the setting's type, or raise ConfigError naming setting, value and
    limits.
    """
    setting = BY_NAME.get(name)
    if setting is None:
        raise ConfigError(f'unknown setting {name!r}')
    kind = type(setting.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is list and isinstance(value, (list, tuple)):
        value = [str(item) for item in value if str(item)]
    if type(value) is not kind:
        raise ConfigError(f'{name} must be of type {setting.type_name}, not {value!r}')
    if setting.choices and value not in setting.choices:
        raise ConfigError(f'{name} must be one of {", ".join(setting.choices)}, not {value!r}')
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f'{name} must be finite, not {value!r}')
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = setting.minimum, setting.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(
                f'{name} is {value:g}, allowed are {low:g} to {high:g}{_unit(setting)}'
            )
    return value


def settings_table() -> str:
    """Return the settings as a Markdown table, for docs/settings.md."""
    rows = [
        '| setting | type | default | range | changes while active | meaning |',
        '|---|---|---|---|---|---|',
    ]
    for s in SETTINGS:
        limits = ', '.join(s.choices)
        if not limits and s.minimum is not None and s.maximum is not None:
            limits = f'{s.minimum:g} to {s.maximum:g}{_unit(s)}'
        default = repr(s.default) if s.default != '' else "''"
        rows.append(
            f'| `{s.name}` | {s.type_name} | `{default}` | {limits} | '
            f'{"no" if s.read_only else "yes"} | {s.doc} |'
        )
    return '\n'.join(rows) + '\n'


def _unit(setting: Setting) -> str:
    return f' {setting.unit}' if setting.unit else ''


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


if __name__ == '__main__':
    import sys

    sys.stdout.write(
        '# Settings\n\nEvery setting is a ROS parameter of the node and, with `--set NAME=VALUE`, '
        'an option of\n`gemma-thor run`. Made by '
        '`python -m gemma_thor_ros.config > docs/settings.md`.\n\n'
        + settings_table()
    )
