"""Requests about one broker's configuration at another node: each broker describes and validates its own."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from replicas_nodes import ReplicatedNode

from minibroker.client.aio import AsyncClient
from minibroker.metadata.configs import NodeConfig
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables import alter_configs as replacing
from minibroker.wire.tables import incremental_alter_configs as incremental
from minibroker.wire.tables.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

LEAST, MOST = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
SIZE = "message.max.bytes"
SECONDS_MAX = 20


def node(path: Path, number: int, *others: ReplicatedNode) -> ReplicatedNode:
    settings = {"node.id": str(number), "log.dirs": str(path / str(number)), "listeners": "PLAINTEXT://127.0.0.1:0"}
    if others:
        # The second node was started with a setting that the first one does not know.
        settings |= {"controller.quorum.voters": f"1@{others[0].address}", MOST: "5"}
    return ReplicatedNode(NodeConfig(settings))


async def describe(at: ReplicatedNode, *names: str) -> dict[str, Any]:
    resources = [
        DescribeConfigsResource(resource_type=4, resource_name=it, configuration_keys=[SIZE, MOST]) for it in names
    ]
    async with AsyncClient(at.address) as client:
        response = await client.send(DescribeConfigsRequest(resources=resources))
    return {
        it.resource_name: it.error_code or {one.name: (one.value, one.config_source) for one in it.configs}
        for it in response.results
    }


async def alter(at: ReplicatedNode, changes: dict[str, tuple[str, str]], *, only_try: bool = False) -> dict[str, int]:
    resources = [
        incremental.AlterConfigsResource(
            resource_type=4,
            resource_name=name,
            configs=[incremental.AlterableConfig(name=key, config_operation=0, value=value)],
        )
        for name, (key, value) in changes.items()
    ]
    request = incremental.IncrementalAlterConfigsRequest(resources=resources, validate_only=only_try)
    async with AsyncClient(at.address) as client:
        response = await client.send(request)
    assert [it.resource_name for it in response.responses] == list(changes)
    return {it.resource_name: it.error_code for it in response.responses}


async def replace(at: ReplicatedNode, name: str, key: str, value: str) -> int:
    configs = [replacing.AlterableConfig(name=key, value=value)]
    resource = replacing.AlterConfigsResource(resource_type=4, resource_name=name, configs=configs)
    async with AsyncClient(at.address) as client:
        response = await client.send(replacing.AlterConfigsRequest(resources=[resource], validate_only=False))
    code: int = response.responses[0].error_code
    return code


async def until_described(at: ReplicatedNode, name: str, key: str, value: tuple[str, int]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while (await describe(at, name))[name][key] != value:
            await asyncio.sleep(0.01)


async def check_both(one: ReplicatedNode, two: ReplicatedNode) -> None:
    for at in (one, two):
        found = await describe(at, "1", "2", "", "3")
        # Source 4 is the configuration file, 5 is the default.
        assert found["2"] == {SIZE: ("1048588", 5), MOST: ("5", 4)}
        assert found["1"][MOST] == (str(2**63 - 1), 5)
        assert found[""] == {}
        assert found["3"] == ErrorCode.INVALID_REQUEST
    for number, at in enumerate((one, two)):
        sizes = {str(it): (SIZE, f"{number + 1}00{it}") for it in (1, 2)}
        assert await alter(at, sizes, only_try=True) == {"1": 0, "2": 0}
        assert await alter(at, {**sizes, "3": (SIZE, "9")}) == {"1": 0, "2": 0, "3": ErrorCode.INVALID_REQUEST}
        for it in (1, 2):
            await until_described(at, str(it), SIZE, (f"{number + 1}00{it}", 2))
        # Only the second node knows that this is larger than its own setting.
        assert await alter(at, {"2": (LEAST, "10")}) == {"2": ErrorCode.INVALID_REQUEST}
        assert await alter(at, {"2": (LEAST, "10")}, only_try=True) == {"2": ErrorCode.INVALID_REQUEST}
        assert await alter(at, {"2": (LEAST, "10"), "1": (LEAST, "10")}) == {"2": ErrorCode.INVALID_REQUEST, "1": 0}
        assert await replace(at, "2", LEAST, "10") == ErrorCode.INVALID_REQUEST
        assert await replace(at, "1", SIZE, "9") == 0


def test_any_node_shows_and_changes_the_configuration_of_any_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        one = node(tmp_path, 1)
        await one.start()
        try:
            two = node(tmp_path, 2, one)
            await two.start()
            try:
                await check_both(one, two)
            finally:
                await two.stop()
            # A broker that is away cannot validate: at its next start it leaves out what it cannot take.
            assert await describe(one, "2") == {"2": ErrorCode.BROKER_NOT_AVAILABLE}
            assert await alter(one, {"2": (LEAST, "10")}) == {"2": 0}
            with caplog.at_level(logging.ERROR):
                two = node(tmp_path, 2, one)
                await two.start()
            try:
                assert "is invalid on this broker and is ignored: min.compaction.lag.ms=10 is larger" in caplog.text
                await until_described(one, "2", MOST, ("5", 4))
            finally:
                await two.stop()
        finally:
            await one.stop()

    asyncio.run(play())
