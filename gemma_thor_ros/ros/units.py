# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Units of tool arguments: to SI on the way to a ROS field, back on the way to the model.

Knows no ROS and no policy. Lengths are exact by definition (an inch is 25.4 mm), so they are
converted with one rounding; angles go through math.pi.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

# unit -> (dimension, SI units in one of it)
LENGTHS: dict[str, Fraction] = {
    'm': Fraction(1),
    'km': Fraction(1000),
    'cm': Fraction(1, 100),
    'mm': Fraction(1, 1000),
    'ft': Fraction(3048, 10000),
    'in': Fraction(254, 10000),
}
ANGLES = ('rad', 'deg')
SI_UNITS = {'length': 'm', 'angle': 'rad'}
UNITS = (*LENGTHS, *ANGLES)

_QUANTITY = re.compile(r'\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-z]+)\s*')


def dimension(unit: str) -> str:
    """Return 'length' or 'angle', or '' for a unit that is not known."""
    if unit in LENGTHS:
        return 'length'
    return 'angle' if unit in ANGLES else ''


def to_si(value: float, unit: str) -> float:
    """Convert a finite `value` in `unit` to metres or radians; infinite beyond float64."""
    if unit in LENGTHS:
        try:
            return float(Fraction(value) * LENGTHS[unit])
        except OverflowError:
            return math.copysign(math.inf, value)
    return math.radians(value) if unit == 'deg' else float(value)


def from_si(value: float, unit: str) -> float:
    """Convert a finite `value` in metres or radians to `unit`."""
    if unit in LENGTHS:
        return float(Fraction(value) / LENGTHS[unit])
    return math.degrees(value) if unit == 'deg' else float(value)


def parse_quantity(text: str) -> tuple[float, str] | None:
    """Read '360 deg' as (360.0, 'deg'); None when it is no finite number with a known unit."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not dimension(match[2]) or not math.isfinite(float(match[1])):
        return None
    return float(match[1]), match[2]


def number_text(value: float) -> str:
    """Write a number for a person or the model: at most 6 digits, no trailing zeros."""
    return f'{value:.6g}'


def quantity_text(value: float, unit: str) -> str:
    """Write a quantity in `unit` and, where that is another one, in SI: '20 ft (6.096 m)'."""
    si = SI_UNITS[dimension(unit)]
    text = f'{number_text(value)} {unit}'
    return text if unit == si else f'{text} ({number_text(to_si(value, unit))} {si})'
