# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What lies in a checkpoint folder, from names and headers alone: formats, counts, sizes.

Works for checkpoints that this engine refuses, too. Reads no tensor data.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import Checkpoint
from gemma_thor_ros.weights.modules import Form, form_of
from gemma_thor_ros.weights.names import Part, kind_of, module_of
from gemma_thor_ros.weights.safetensors_file import read_json

TEMPLATE_NAME = 'chat_template.jinja'

# The two files of the current template (header of 2026-07-09), by SHA-256.
TEMPLATE_VERSIONS = {
    'ae53464bf3be25802b3a5b37def7fd89667067d7577049b3b2d74c4d8de4c6d4': 'v3, large models',
    '0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5': 'v3, E2B and E4B',
}


@dataclass
class Amount:
    """A number of tensors and their bytes."""

    num_tensors: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        """Count one tensor."""
        self.num_tensors += 1
        self.num_bytes += num_bytes


@dataclass
class Summary:
    """Counts of a checkpoint; forms are those of modules.Form, 'dense' split by dtype."""

    text_prefix: str
    parts: dict[str, Amount] = field(default_factory=dict)           # text, vision, audio, ...
    text_parts: dict[str, Amount] = field(default_factory=dict)      # attention, experts, ...
    forms: dict[str, dict[str, int]] = field(default_factory=dict)   # kind -> form -> modules
    unknown: list[str] = field(default_factory=list)                 # names nobody knows
    refusal: str = ''                                # why the text weights can't be used


@dataclass(frozen=True)
class Template:
    """The chat template that a folder ships. `version` is '' for one that is not current."""

    source: str                          # file name, '' when there is none
    sha256: str
    version: str


def summarise(checkpoint: Checkpoint) -> Summary:
    """Counts by part, kind and form, and why the text weights would be refused, if so."""
    summary = Summary(checkpoint.text_prefix)
    modules: set[str] = set()
    for part, names in checkpoint.parts().items():
        for name in names:
            num_bytes = checkpoint.info(name).nbytes
            summary.parts.setdefault(part.value, Amount()).add(num_bytes)
            if part is Part.TEXT:
                module = module_of(name).removeprefix(checkpoint.text_prefix)
                summary.text_parts.setdefault(_text_part(module), Amount()).add(num_bytes)
                modules.add(module)
            elif part is Part.UNKNOWN:
                summary.unknown.append(name)
    forms: dict[str, Counter[str]] = {}
    for module in modules:
        forms.setdefault(kind_of(module), Counter())[_form_name(checkpoint, module)] += 1
    summary.forms = {kind: dict(forms[kind]) for kind in sorted(forms)}
    try:
        checkpoint.text_weights()
    except ConfigError as error:
        summary.refusal = str(error)
    return summary


def find_template(folder: Path) -> Template:
    """The template file, or the text inside tokenizer_config.json that older packs carry."""
    path = folder / TEMPLATE_NAME
    if path.is_file():
        return _template(TEMPLATE_NAME, path.read_bytes())
    path = folder / 'tokenizer_config.json'
    if path.is_file():
        text = read_json(path).get('chat_template')
        if isinstance(text, str):
            return _template(path.name, text.encode())
    return Template('', '', '')


def _template(source: str, content: bytes) -> Template:
    digest = hashlib.sha256(content).hexdigest()
    return Template(source, digest, TEMPLATE_VERSIONS.get(digest, ''))


def _text_part(module: str) -> str:
    """The part of the text model whose bytes a reader wants to see apart."""
    if module.startswith('embed_tokens'):
        return 'embedding'
    for mark, part in (('.self_attn.', 'attention'), ('.experts.', 'experts'), ('.mlp.', 'mlp'),
                       ('.router.', 'router')):
        if mark in module:
            return part if not module.endswith('_norm') else 'norms and scalars'
    return 'per-layer inputs' if 'per_layer' in module else 'norms and scalars'


def _form_name(checkpoint: Checkpoint, module: str) -> str:
    name = checkpoint.text_prefix + module
    form = form_of(checkpoint.tensors, name)
    if form is None:
        return 'unknown'
    if form is not Form.DENSE:
        return str(form.value)
    dense = f'{name}.weight' if f'{name}.weight' in checkpoint.tensors else name
    dtype: str = checkpoint.info(dense).dtype
    return dtype.lower() if dtype in ('BF16', 'F32') else dtype
