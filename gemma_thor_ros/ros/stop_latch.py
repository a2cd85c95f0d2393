# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Whether the robot may move: stop topics, the latch, and the file in which the latch survives.

All times are handed in by the caller, from the steady clock in seconds. Knows no ROS.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RETRY_S = 1.0                    # between attempts to write the state file


@dataclass
class StopInput:
    """One stop topic. It says stop unless its last message is a fresh `false` of one publisher."""

    topic: str
    max_age_s: float
    value: bool | None = None
    received: float = 0.0
    num_publishers: int = 0
    incompatible: bool = False

    def age_s(self, now: float) -> float:
        """Return the age of the last message; -1 when there is none yet."""
        return -1.0 if self.value is None else now - self.received

    def reason(self, now: float) -> str:
        """Return why this topic says stop; '' when it does not."""
        if self.num_publishers > 1:
            return f'{self.num_publishers} publishers'
        if self.incompatible:
            return 'incompatible QoS'
        if self.value is None:
            return 'no message yet'
        if self.value:
            return 'true received'
        if now - self.received > self.max_age_s:
            return f'older than {self.max_age_s:g} s'
        return ''


class LatchFile:
    """The latch on disk. A file that can't be read counts as latched; a missing one does not."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self) -> tuple[bool, str]:
        """Return (latched, reason)."""
        if self.path is None:
            return False, ''
        try:
            data = json.loads(self.path.read_text(encoding='utf-8'))
            latched, reason = data['latched'], data['reason']
        except FileNotFoundError:
            return False, ''
        except (OSError, ValueError, KeyError, TypeError) as error:
            return True, f'the state file {self.path} cannot be read ({type(error).__name__})'
        if not isinstance(latched, bool):
            return True, f'the state file {self.path} is damaged'
        return latched, str(reason)

    def save(self, data: dict[str, Any]) -> str:
        """Write the state so that a crash leaves the old or the new one; return a fault or ''."""
        if self.path is None:
            return ''
        temporary = self.path.with_name(f'{self.path.name}.new')
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open('w', encoding='utf-8') as file:
                json.dump(data, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            return f'the state file {self.path} cannot be written: {error.strerror}'
        return ''

    def prove(self) -> str:
        """Write what the file says once more; return why that fails, or ''.

        Asked at the start: a file that can't be written would forget the next stop.
        """
        if self.path is None:
            return ''
        latched, reason = self.load()
        data = {'latched': latched, 'reason': reason}
        # Where it is missing or damaged, what it counts as is written.
        with contextlib.suppress(OSError, ValueError, TypeError):
            data = {**json.loads(self.path.read_text(encoding='utf-8')), **data}
        fault = self.save(data)
        return fault and f"{fault}; set state_file, or 'none' for a latch that no restart survives"


def state_path(wanted: str, node_name: str) -> Path | None:
    """Return where the latch of the guard `node_name` is kept; None for the wish 'none'."""
    if wanted == 'none':
        return None
    if wanted:
        return Path(wanted)
    name = node_name.strip('/').replace('/', '__')
    return Path.home() / '.ros' / 'gemma_thor_ros' / f'{name}.json'


class Stops:
    """All stop topics and the latch.

    A `true` latches: motion stays stopped until an operator releases it while every topic says
    `false`. The other reasons end by themselves.
    """

    def __init__(self, topics: Sequence[str], max_age_s: float, latch_file: LatchFile) -> None:
        self.inputs = {topic: StopInput(topic, max_age_s) for topic in topics}
        self._file = latch_file
        self.latched, self.latch_reason = latch_file.load()
        self.fault = ''                  # of the last attempt to write the state file
        self._unsaved: dict[str, Any] = {}
        self._retry_at = 0.0

    def on_message(self, topic: str, value: bool, now: float) -> None:
        """Take a message of a stop topic."""
        source = self.inputs[topic]
        source.value, source.received = value, now
        if source.num_publishers <= 1:
            source.incompatible = False
        if value and not self.latched:
            self.latched, self.latch_reason = True, f'{topic} said true'
            self._save({}, now)

    def tick(self, now: float) -> None:
        """Try again to write a state that could not be written."""
        if self.fault and now >= self._retry_at:
            self._save(self._unsaved, now)

    def on_incompatible(self, topic: str) -> None:
        """Take note that a publisher of a stop topic can't be heard."""
        self.inputs[topic].incompatible = True

    def reason(self, now: float) -> str:
        """Return why motion is stopped, every source named; '' when it is not."""
        reasons = [f'{source.topic}: {source.reason(now)}' for source in self.inputs.values()
                   if source.reason(now)]
        if self.latched:
            reasons.append(f'latched ({self.latch_reason}); release it')
            if self.fault:
                reasons.append(f'{self.fault}: a restart would forget the latch')
        return '; '.join(reasons)

    def active(self, now: float) -> list[StopInput]:
        """Return the topics that say stop."""
        return [source for source in self.inputs.values() if source.reason(now)]

    def release(self, operator: str, reason: str, now: float) -> str:
        """Open the latch; return why not, or ''."""
        if not operator.strip() or not reason.strip():
            return 'operator_name and reason are required'
        active = self.active(now)
        if active:
            return 'still stopped: ' + '; '.join(f'{s.topic}: {s.reason(now)}' for s in active)
        self.latched, self.latch_reason = False, ''
        self._save({'released_by': operator, 'released_because': reason}, now)
        return ''

    def _save(self, more: dict[str, Any], now: float) -> None:
        self._unsaved, self._retry_at = more, now + RETRY_S
        self.fault = self._file.save({'latched': self.latched, 'reason': self.latch_reason,
                                      'time': time.time(), **more})
