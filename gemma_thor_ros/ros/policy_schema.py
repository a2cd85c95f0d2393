# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The shape of a policy file as a JSON schema: which keys there are and what each may hold.

What the keys mean together is policy.py's. Knows no ROS.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ros.units import UNITS

CONVERSIONS = ('yaw_to_quaternion',)
MAX_RATE_HZ = 50                 # of a publish: goal_guard looks every 20 ms
MAX_ITEMS = 1000                 # elements of an array argument or constant
FRAME_SOURCES = ('auto', 'tf', 'static')
CALLS = ('in_order', 'together')
AFTER_FAILURE = ('refuse', 'go_on')
AFTER_READING = ('confirm', 'refuse', 'allow')
CONFIRM = ('never', 'once_per_session', 'always')

_NAME = r'^[A-Za-z_][A-Za-z0-9_.-]{0,63}$'
_IDENTIFIER = r'^[A-Za-z_][A-Za-z0-9_]{0,63}$'
_FIELD_PATH = r'^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$'
_PARAMETER = r'^[A-Za-z][A-Za-z0-9_./-]{0,199}$'
_SCALAR = {'type': ['string', 'number', 'boolean']}
_LIMIT = {'type': ['number', 'string']}
_CONSTANT = {'anyOf': [_SCALAR, {'type': 'array', 'items': _SCALAR, 'maxItems': MAX_ITEMS}]}


def _mapping(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {'type': 'object', 'properties': properties, 'required': list(required),
            'additionalProperties': False}


def _named(pattern: str, value: dict[str, Any]) -> dict[str, Any]:
    return {'type': 'object', 'patternProperties': {pattern: value}, 'additionalProperties': False}


def _type_name(kind: str) -> dict[str, Any]:
    return {'type': 'string', 'pattern': rf'^[a-z][a-z0-9_]*/{kind}/[A-Z][A-Za-z0-9]*$'}


_TEXT = {'type': 'string', 'minLength': 1, 'maxLength': 2000}
_SECONDS = {'type': 'number', 'exclusiveMinimum': 0, 'maximum': 86400}

_PATH = {'type': 'string', 'pattern': _FIELD_PATH}
# The same with elements of arrays, such as covariance[0] or cells[2].voltage.
_VALUE_PATH = {'type': 'string', 'pattern': (
    r'^[a-z][a-z0-9_]*(\[[0-9]{1,4}\])?(\.[a-z][a-z0-9_]*(\[[0-9]{1,4}\])?)*$')}
_NAMES = {'type': 'array', 'items': {'type': 'string'}, 'uniqueItems': True}
_FRAME = {'type': 'string', 'pattern': r'^[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}$'}
_ROS_NAME = {'type': 'string', 'pattern': r'^[~/A-Za-z_][A-Za-z0-9_/]*$'}
_SHAPES = {'type': 'array', 'minItems': 1, 'items': _mapping({
    'box': {'type': 'array', 'items': {'type': 'number'}, 'minItems': 4, 'maxItems': 4},
    'polygon': {'type': 'array', 'minItems': 3, 'items': {
        'type': 'array', 'items': {'type': 'number'}, 'minItems': 2, 'maxItems': 2}},
})}

ARGUMENT_SCHEMA = _mapping({
    'type': {'enum': ['number', 'integer', 'string', 'boolean', 'array']},
    'description': _TEXT,
    'enum': {'type': 'array', 'minItems': 1, 'items': _SCALAR},
    'required': {'type': 'boolean'},
    'default': _SCALAR,
    'field': {'type': 'string', 'pattern': _FIELD_PATH},
    'unit': {'enum': list(UNITS)},
    'unit_arg': {'type': 'string'},
    'sign_arg': {'type': 'string'},
    'sign': _named('.', {'enum': [1, -1]}),
    'values': _named('.', _SCALAR),
    'min': _LIMIT,
    'max': _LIMIT,
    'max_length': {'type': 'integer', 'minimum': 1, 'maximum': 100000},
    'convert': {'enum': list(CONVERSIONS)},
    'items': {'enum': ['number', 'integer', 'string', 'boolean']},
    'min_items': {'type': 'integer', 'minimum': 0, 'maximum': MAX_ITEMS},
    'max_items': {'type': 'integer', 'minimum': 1, 'maximum': MAX_ITEMS},
}, required=('type',))

RESULT_SCHEMA = _mapping({
    'field': _VALUE_PATH,
    'unit': {'enum': list(UNITS)},
    'round': {'type': 'integer', 'minimum': 0, 'maximum': 15},
    'max_length': {'type': 'integer', 'minimum': 1, 'maximum': 100000},
}, required=('field',))

TOOL_SCHEMA = _mapping({
    'description': _TEXT,
    'motion': {'type': 'boolean'},
    'action': _mapping({'name': _ROS_NAME, 'type': _type_name('action')}, ('name', 'type')),
    'service': _mapping({'name': _ROS_NAME, 'type': _type_name('srv'), 'success': _VALUE_PATH},
                        ('name', 'type')),
    'publish': _mapping({
        'name': _ROS_NAME, 'type': _type_name('msg'),
        'rate_hz': {'type': 'number', 'minimum': 1, 'maximum': MAX_RATE_HZ},
        'max_duration_s': _SECONDS, 'duration_arg': {'type': 'string'},
        'stop_message': _named(_FIELD_PATH, _CONSTANT)}, ('name', 'type')),
    'read': _mapping({'name': _ROS_NAME, 'type': _type_name('msg'), 'max_age_s': _SECONDS,
                      'latched': {'type': 'boolean'}}, ('name', 'type')),
    'parameter': _mapping({
        'node': _ROS_NAME, 'name': {'type': 'string', 'pattern': _PARAMETER}},
        ('node', 'name')),
    'args': _named(_IDENTIFIER, ARGUMENT_SCHEMA),
    'constants': _named(_FIELD_PATH, _CONSTANT),
    'timeout_s': _SECONDS,
    'server_timeout_s': _SECONDS,
    'confirm': {'enum': list(CONFIRM)},
    'pose': {'anyOf': [_PATH, _mapping({
        'frame': _FRAME, 'frame_field': _PATH, 'x': _PATH, 'y': _PATH, 'z': _PATH})]},
    'area': {'type': 'string'},
    'requires': _NAMES,
    'rate': _mapping({
        'calls': {'type': 'integer', 'minimum': 1, 'maximum': 1000}, 'period_s': _SECONDS,
    }, required=('calls', 'period_s')),
    'after_reading': {'enum': list(AFTER_READING)},
    'trusts': _NAMES,
    'confirm_timeout_s': _SECONDS,
    'result': _named(_IDENTIFIER, RESULT_SCHEMA),
    'reason': {'type': 'string', 'pattern': _FIELD_PATH},
}, required=('description', 'motion'))

FRAMES_SCHEMA = _mapping({
    'source': {'enum': list(FRAME_SOURCES)},
    'reference': _FRAME,
    'max_age_s': _SECONDS,
    'static': {'type': 'array', 'items': _mapping({
        'parent': _FRAME, 'child': _FRAME, 'x': _LIMIT, 'y': _LIMIT, 'z': _LIMIT,
        'roll': _LIMIT, 'pitch': _LIMIT, 'yaw': _LIMIT}, required=('parent', 'child'))},
})

AREA_SCHEMA = _mapping({'frame': _FRAME, 'inside': _SHAPES, 'outside': _SHAPES},
                       required=('frame', 'inside'))

PRECONDITION_SCHEMA = _mapping({
    'topic': _ROS_NAME,
    'type': _type_name('msg'),
    'field': _VALUE_PATH,
    'min': {'type': 'number'},
    'max': {'type': 'number'},
    'equals': _SCALAR,
    'max_age_s': _SECONDS,
    'stamp': {'type': 'boolean'},
    'latched': {'type': 'boolean'},
    'otherwise': _TEXT,
}, required=('topic', 'type'))

POLICY_SCHEMA = _mapping({
    'version': {'const': 1},
    'calls': {'enum': list(CALLS)},
    'after_failure': {'enum': list(AFTER_FAILURE)},
    'frames': FRAMES_SCHEMA,
    'areas': _named(_IDENTIFIER, AREA_SCHEMA),
    'preconditions': _named(_IDENTIFIER, PRECONDITION_SCHEMA),
    'tools': {'type': 'object', 'minProperties': 1, 'patternProperties': {_NAME: TOOL_SCHEMA},
              'additionalProperties': False},
}, required=('version', 'tools'))
