# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Lets the model tests import their shared helpers, which lie beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
