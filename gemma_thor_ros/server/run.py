# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the endpoint in a thread of the node's process."""

from __future__ import annotations

import logging
import socket
import threading
import time

import uvicorn

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.server.app import create_app
from gemma_thor_ros.server.protocol import patient_protocol
from gemma_thor_ros.server.security import check_binding

_log = logging.getLogger(__name__)


class Sidecar:
    """uvicorn with our own start and end; it installs no signal handlers outside the main
    thread.
    """

    def __init__(self, runtime: Runtime, config: EngineConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def start(self) -> int:
        """Bind, serve in a thread, and return the port.

        Raises:
            ConfigError: the address can't be bound (port in use), or it needs an API key.
        """
        api_key = check_binding(self._config)
        listener = self._bind()
        self.port = listener.getsockname()[1]
        app = create_app(self._runtime, self._config, api_key)
        settings = uvicorn.Config(
            app,
            lifespan='off',
            ws='none',
            http=patient_protocol(self._config['http.read_timeout']),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={'sockets': [listener]}, name='http', daemon=True
        )
        self._thread.start()
        _log.info('serving on http://%s:%d', self._config['http.host'], self.port)
        return self.port

    def cpu_seconds(self) -> float:
        """Return the processor time that the server's thread has spent; for benchmarks."""
        assert self._thread is not None and self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def stop(self, timeout_s: float) -> bool:
        """End the server: open streams get a second, then they are closed. True when it has
        ended.
        """
        if self._server is None or self._thread is None:
            return True
        self._server.should_exit = True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(0.5)
        return not self._thread.is_alive()

    def _bind(self) -> socket.socket:
        host, port = self._config['http.host'], self._config['http.port']
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise ConfigError(f'http.host {host}: {error}') from error
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"can't bind http.host {host}, http.port {port}: {error.strerror}. "
                'Set http.port to a free port, or to 0 for any.'
            ) from error
        listener.setblocking(False)
        return listener
