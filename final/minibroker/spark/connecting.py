"""The clients of the connector: the client of the driver, and the clients that the tasks of a worker process share."""

import os

from minibroker.clients.blocking import Client
from minibroker.spark.options import ClientSettings

_CLIENTS_MAX = 8
_clients: dict[tuple[int, ClientSettings], Client] = {}


def new_client(settings: ClientSettings) -> Client:
    """Make a client with these settings; it connects when it is first used."""
    return Client(
        settings.bootstrap_servers,
        client_id=settings.client_id,
        timeout_ms=settings.timeout_ms,
        connect_timeout_ms=settings.connect_timeout_ms,
        retry=settings.retry,
    )


def demand_broker(settings: ClientSettings) -> None:
    """Fail now if no broker answers, rather than later in each attempt of each task."""
    with new_client(settings) as client:
        client.metadata([])


def cached_client(settings: ClientSettings) -> Client:
    """Return the client of this process for these settings; a forked process makes its own."""
    key = os.getpid(), settings
    if key not in _clients:
        while len(_clients) >= _CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        _clients[key] = new_client(settings)
    return _clients[key]


def forget_client(settings: ClientSettings) -> None:
    """Close the client, so that the next task gets a new one."""
    client = _clients.pop((os.getpid(), settings), None)
    if client is not None:
        client.close()


def close_clients() -> None:
    """Close the connections of this process, which a worker otherwise keeps until it ends."""
    while _clients:
        _clients.popitem()[1].close()
