"""A time limit for the headers of a request, which the server itself would wait for forever.

uvicorn limits only the time between two requests. A client that opens many connections and never finishes a
request could therefore use up all file descriptors of the server.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0
"""A connection is closed when it has waited for headers for this long, at the latest after twice as long.

The body of a request may take any time.
"""


def limit() -> None:
    """Let the server of this process close connections with unfinished headers.

    The protocol class is patched because Streamlit passes no options to uvicorn, and uvicorn has chosen its
    protocol before it imports our app.
    """
    connected = H11Protocol.connection_made

    def connection_made(self: H11Protocol, transport: asyncio.Transport) -> None:
        connected(self, transport)
        self.loop.call_later(SECONDS, _close_if_waiting, self, None)

    H11Protocol.connection_made = connection_made  # type: ignore[method-assign]


def _close_if_waiting(connection: H11Protocol, last_request: Any) -> None:
    """Close a connection that has waited for headers since the last check, or check again later.

    Args:
        last_request: the request that the connection had last completed at the previous check; None if there
            was none.
    """
    if connection not in connection.connections:  # it was closed, or became a WebSocket
        return
    waiting = connection.conn.their_state is h11.IDLE
    if waiting and connection.cycle is last_request:
        connection.transport.close()
    else:
        awaited_since = connection.cycle if waiting else connection
        connection.loop.call_later(SECONDS, _close_if_waiting, connection, awaited_since)
