# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How answers to the held-out dialogues are judged and counted, and which figures were missed.

Answers only: it starts no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jsonschema

from gemma_thor_ros.demo.evaluation.cases import LIMITS, Case
from gemma_thor_ros.schema import ChatResult, Usage

SINGLE_CALL = ('motion', 'known', 'unseen_names', 'unseen_names_and_values')
MOST_WITHHELD = 3.0
MOST_LOST_TO_NVFP4 = 1.0


@dataclass
class RowResult:
    """Counts of one row."""

    cases: int = 0
    right: int = 0
    withheld: int = 0                    # a call was due, and none came
    invalid: int = 0                     # a call that breaks the declarations
    usage: Usage = field(default_factory=Usage)

    @property
    def percent(self) -> float:
        """Per cent right."""
        return 100.0 * self.right / self.cases if self.cases else 0.0


def is_right(case: Case, result: ChatResult) -> bool:
    """Whether an answer is what the case expects; calls with all arguments, in their order."""
    calls = [[call.name, call.arguments] for call in result.tool_calls]
    text = result.text.strip()
    if result.malformed or any(call.repaired for call in result.tool_calls):
        return False
    if case.thinking and not result.reasoning:
        return False
    if 'reason' in case.expect:
        told = str(case.expect['reason']) in text
        return not calls and told and str(case.expect['claim']) not in text
    if 'text' in case.expect:
        return not calls and text == case.expect['text']
    if 'question' in case.expect:
        return not calls and text.endswith('?')
    if not case.expect['calls']:
        return not calls and bool(text)
    return not text and calls == case.expect['calls']


def is_withheld(case: Case, result: ChatResult) -> bool:
    """Whether a call was due and none was made."""
    return bool(case.expect.get('calls')) and not result.tool_calls


def breaks_declarations(case: Case, result: ChatResult) -> bool:
    """Whether a call names no declared tool or its arguments do not fit the schema."""
    schemas = {tool['function']['name']: tool['function']['parameters'] for tool in case.tools}
    for call in result.tool_calls:
        schema = schemas.get(call.name)
        if schema is None or call.repaired:
            return True
        checker = jsonschema.Draft202012Validator({**schema, 'additionalProperties': False})
        if not checker.is_valid(call.arguments):
            return True
    return False


def count(result: RowResult, case: Case, answer: ChatResult) -> bool:
    """Add one answer to its row; gives whether it was right."""
    right = is_right(case, answer)
    result.cases += 1
    result.right += right
    result.withheld += is_withheld(case, answer)
    result.invalid += breaks_declarations(case, answer)
    result.usage = result.usage + answer.usage
    return right


def missed(
    rows: dict[str, RowResult],
    constrained: RowResult | None = None,
    lost_to_nvfp4: float | None = None,
) -> list[str]:
    """One sentence for each figure that is not reached; rows that did not run are not judged."""
    out = []
    for name, result in rows.items():
        limit = LIMITS[name]
        if limit is not None and result.cases and result.percent < limit:
            out.append(f'{name}: {result.percent:.1f} % right, {limit:g} % are asked for')
    if any(name in rows for name in SINGLE_CALL):
        withheld = withheld_percent(rows)
        if withheld > MOST_WITHHELD:
            out.append(f'{withheld:.1f} % of due calls withheld, at most {MOST_WITHHELD:g} %')
    if constrained is not None and constrained.invalid:
        out.append(f'{constrained.invalid} constrained answers break the declarations')
    if lost_to_nvfp4 is not None and lost_to_nvfp4 > MOST_LOST_TO_NVFP4:
        out.append(f'NVFP4 loses {lost_to_nvfp4:.1f} points, at most {MOST_LOST_TO_NVFP4:g}')
    return out


def withheld_percent(rows: dict[str, RowResult]) -> float:
    """Calls wrongly withheld, per cent of the cases that ask for one call."""
    due = [rows[name] for name in SINGLE_CALL if name in rows]
    return 100.0 * sum(row.withheld for row in due) / max(1, sum(row.cases for row in due))


def total_percent(rows: Sequence[RowResult]) -> float:
    """Per cent right over all cases of some rows."""
    return 100.0 * sum(row.right for row in rows) / max(1, sum(row.cases for row in rows))
