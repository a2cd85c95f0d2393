# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the model has read since the user's last words: results of tools, and images.

Such text may be anybody's (a sign, a web page, another robot), so by default a motion that follows
it in the same turn is a person's to allow. Works on messages in the OpenAI form; knows no ROS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma_thor_ros.ros.verdict import Outcome, Verdict

UNKNOWN = ''                     # a result of nobody knows which tool


@dataclass(frozen=True)
class Reads:
    """Names of the tools whose results were read (UNKNOWN among them), and whether images were."""

    tools: frozenset[str] = frozenset()
    images: bool = False

    def after(self, verdicts: Iterable[Verdict]) -> Reads:
        """Return what has been read when these have been told as well.

        A call that was not sent brought back nothing but our own words.
        """
        names = {v.name for v in verdicts if v.outcome is Outcome.EXECUTED}
        return Reads(self.tools | names, self.images)

    def untrusted(self, trusted: Iterable[str]) -> str:
        """Return what was read besides results of `trusted` tools, in words; '' for nothing."""
        names = sorted(self.tools - set(trusted))
        parts = [f'results of {", ".join(name or "an unknown tool" for name in names)}'
                 ] if names else []
        if self.images:
            parts.append('images')
        return ' and '.join(parts)


NOTHING_READ = Reads()


def reads_of(messages: Sequence[Mapping[str, Any]], in_session: bool) -> Reads:
    """Return what was read since the last user message of a request.

    Without a user message in a session the last one lies in its history, and so may other
    results.
    """
    tools: set[str] = set()
    for message in reversed(messages):
        if message.get('role') == 'user':
            return Reads(frozenset(tools), _has_images(message))
        if message.get('role') == 'tool':
            tools.add(str(message.get('name') or UNKNOWN))
    if in_session:
        tools.add(UNKNOWN)
    return Reads(frozenset(tools), any(map(_has_images, messages)))


def _has_images(message: Mapping[str, Any]) -> bool:
    content = message.get('content')
    if not isinstance(content, (list, tuple)):
        return False
    return any(isinstance(part, Mapping) and part.get('type') not in ('text', 'input_text')
               for part in content)
