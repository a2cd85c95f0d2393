# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What one user turn is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from demo_model.commands import Command


@dataclass
class Episode:
    """One user turn and what follows. `commands` is empty where no tool is called."""

    user: str
    commands: list[Command] = field(default_factory=list)
    reply: str = ''
    thought: str = ''
    category: str = ''
