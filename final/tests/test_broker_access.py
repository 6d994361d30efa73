"""Claims about the access table of the finished broker."""

import asyncio
from pathlib import Path

from minibroker.broker import access
from minibroker.broker.apis import declare_every_api
from minibroker.broker.node import broker_node
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.access import Caller, Place
from minibroker.wire.apis import APIS, ApiKey


def test_every_api_that_is_served_has_a_row_and_every_row_a_table(tmp_path: Path) -> None:
    """A node with an API without a row does not start; and a row without a handler is a promise that is not kept."""
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


def test_what_nodes_say_to_each_other_is_refused_from_clients() -> None:
    for_nodes = {key for key, row in access.ROWS.items() if row.caller is Caller.NODE}
    assert for_nodes == {
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.ENVELOPE,
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }


def test_what_only_the_controller_can_do_is_forwarded_to_it() -> None:
    forwarded = {key for key, row in access.ROWS.items() if Place.CONTROLLER in row.places}
    assert forwarded == {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
