# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""uvicorn's HTTP protocol with a limit on the time that a request's head may take, which it
lacks: connections that never say anything would stay for ever.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def patient_protocol(read_timeout_s: float) -> type[H11Protocol]:
    """Return a protocol that closes connections whose request's head takes longer."""

    class PatientProtocol(H11Protocol):
        """Runs a timer while a head is awaited: from the start, and from its first byte on."""

        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                if self.conn.trailing_data[0]:
                    self._await_head()
            elif self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(read_timeout_s, self.transport.close)

    return PatientProtocol
