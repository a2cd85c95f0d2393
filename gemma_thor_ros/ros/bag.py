# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Audit records out of a ROS bag, where rosbag2_py is installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rclpy.serialization import deserialize_message

from gemma_thor_ros.msg import RequestRecord
from gemma_thor_ros.ros.audit import record_from_ros
from gemma_thor_ros.schema import ConfigError

RECORD_TYPE = 'gemma_thor_ros/msg/RequestRecord'


def bag_records(path: Path) -> Iterator[dict[str, Any]]:
    """Return the records of all topics of RECORD_TYPE in a bag.

    Raises:
        ConfigError: rosbag2_py can't be imported, or it can't read the bag.
    """
    try:
        bags = importlib.import_module('rosbag2_py')
    except ImportError as error:
        raise ConfigError(
            f'{path} is a bag, and rosbag2_py is not there to read it ({error}); audit.file '
            'writes JSON lines without it'
        ) from error
    reader = bags.SequentialReader()
    try:
        storage = bags.StorageOptions(uri=str(path), storage_id='')
        reader.open(storage, bags.ConverterOptions('', ''))
    except RuntimeError as error:
        raise ConfigError(f'{path} can not be read as a bag: {error}') from error
    topics = {t.name for t in reader.get_all_topics_and_types() if t.type == RECORD_TYPE}
    while reader.has_next():
        topic, data, _ = reader.read_next()
        if topic in topics:
            yield record_from_ros(deserialize_message(data, RequestRecord))
