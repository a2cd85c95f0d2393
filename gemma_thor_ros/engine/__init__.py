# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The engine: token ids in, token ids out. What its users need is exported here."""

from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.engine.page_pool import plan_pages, window_pages
from gemma_thor_ros.engine.stats import EngineStats

__all__ = ['Engine', 'EngineStats', 'Outbox', 'plan_pages', 'window_pages']
