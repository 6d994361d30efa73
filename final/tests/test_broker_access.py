"""Claims about the access table of the finished broker."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from minibroker.broker import access
from minibroker.broker.apis import declare_every_api
from minibroker.broker.node import broker_node
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.access import Caller, Place
from minibroker.wire.apis import APIS, ApiKey


def test_every_api_that_is_served_has_a_row_and_every_row_a_table(tmp_path: Path) -> None:
    """A node with an API without a row does not start, and a row without a handler would be useless."""
    declare_every_api()
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}

    async def served() -> list[ApiKey]:
        node = broker_node(NodeConfig(settings))
        await node.start()
        try:
            return node.machine.registry.known()
        finally:
            await node.stop()

    known = asyncio.run(served())
    assert sorted(known) == sorted(access.ROWS)
    assert sorted(known) == sorted(APIS)


def names(keys: Iterable[ApiKey]) -> list[str]:
    return sorted(key.name for key in keys)


def test_requests_between_nodes_are_refused_from_clients() -> None:
    expected = """
        VOTE BEGIN_QUORUM_EPOCH END_QUORUM_EPOCH FETCH_SNAPSHOT ENVELOPE
        ALTER_PARTITION BROKER_REGISTRATION BROKER_HEARTBEAT ALLOCATE_PRODUCER_IDS GET_REPLICA_LOG_INFO
    """
    assert names(key for key, row in access.ROWS.items() if row.caller is Caller.NODE) == sorted(expected.split())


def test_requests_for_the_controller_are_forwarded_to_it() -> None:
    expected = """
        CREATE_TOPICS DELETE_TOPICS CREATE_PARTITIONS ALTER_CONFIGS INCREMENTAL_ALTER_CONFIGS ALTER_CLIENT_QUOTAS
        ELECT_LEADERS ALTER_PARTITION_REASSIGNMENTS LIST_PARTITION_REASSIGNMENTS UNREGISTER_BROKER
        ADD_RAFT_VOTER REMOVE_RAFT_VOTER
    """
    forwarded = (key for key, row in access.ROWS.items() if Place.CONTROLLER in row.places)
    assert names(forwarded) == sorted(expected.split())
