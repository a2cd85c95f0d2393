# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_thor_ros.ros import units


@pytest.mark.parametrize(('value', 'unit', 'si'), [
    (2, 'm', 2.0), (35, 'cm', 0.35), (1500, 'mm', 1.5), (1, 'ft', 0.3048), (10, 'in', 0.254),
    (0.5, 'km', 500.0), (180, 'deg', math.pi), (1.5, 'rad', 1.5), (360, 'deg', 2 * math.pi),
])
def test_to_si_is_the_nearest_float(value: float, unit: str, si: float) -> None:
    assert units.to_si(value, unit) == si


def test_overflow_is_infinite_not_an_exception() -> None:
    assert units.to_si(1e308, 'km') == math.inf
    assert units.to_si(-1e308, 'km') == -math.inf


@given(st.floats(-1e6, 1e6), st.sampled_from(units.UNITS))
def test_there_and_back(value: float, unit: str) -> None:
    assert units.from_si(units.to_si(value, unit), unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(('text', 'expected'), [
    ('5 m', (5.0, 'm')), ('-360 deg', (-360.0, 'deg')), ('1.5e3mm', (1500.0, 'mm')),
    ('.5 in', (0.5, 'in')), ('5', None), ('m', None), ('5 miles', None), ('1e999 m', None),
    ('nan m', None), ('5 m 3 cm', None), ('', None),
])
def test_parse_quantity(text: str, expected: tuple[float, str] | None) -> None:
    assert units.parse_quantity(text) == expected


def test_quantity_text_names_both_units() -> None:
    assert units.quantity_text(50.0, 'm') == '50 m'
    assert units.quantity_text(20.0, 'ft') == '20 ft (6.096 m)'
    assert units.quantity_text(400.0, 'deg') == '400 deg (6.98132 rad)'
