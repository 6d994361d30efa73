"""What the partitions of `__consumer_offsets` cost a node: its time to start, its memory and its open files.

All partitions are on one node, and a group has committed in each. For comparison, a node has none of them, as before
the first group. The time to start ends when the coordinators of all groups have loaded them and answer.
"""

from pathlib import Path

from bench.wires import Crowd, Wire, find_coordinator, no_errors

from minibroker.bench import Benchmark, Case, Context, Fact, children, scaled
from minibroker.bench.launcher import Server
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.coordinators.placing import partition_of
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

TOPIC = "orders"
VERSION = 9
NONE = "no internal partitions"


def groups_of(partitions: int) -> list[str]:
    """The names of groups, one for each partition of `__consumer_offsets`."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        name = f"group-{number}"
        found.setdefault(partition_of(name, partitions), name)
        number += 1
    return list(found.values())


class Node:
    """A node with some internal partitions, which is started again and again."""

    def __init__(self, context: Context, name: str, partitions: int) -> None:
        self.name = name
        self._context = context
        self._data: Path = context.directory / f"data-{partitions}"
        self._settings = (f"offsets.topic.num.partitions={partitions or 1}",)
        self._groups = groups_of(partitions)
        self._crowd = Crowd(context)
        self._server = self._serve()
        if self._groups:
            self._crowd.run(self._commit(self._server.address))
        self.stop()

    def _serve(self) -> Server:
        return children.start(self._context, children.broker_on(self._data, *self._settings))

    def start(self) -> None:
        """Start the node, and wait until it answers for every group."""
        self._server = self._serve()
        self._crowd.run(self._await_groups(self._server.address))

    async def _await_groups(self, address: str) -> None:
        wire = await Wire.connect(address)
        for it in self._groups:
            asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=it, topics=None)])
            no_errors([await wire.insist(asked, VERSION)])
        wire.close()

    def stop(self) -> None:
        """Note what the node needs, and stop it."""
        self.resident_mb, self.open_files = self._server.resident_mb(), self._server.open_files()
        self._server.stop()

    async def _commit(self, address: str) -> None:
        with Client(address) as client:
            create_topics(client, [NewTopic(TOPIC, 1, 1)])
        wire = await Wire.connect(await find_coordinator(address, self._groups[0]))
        for it in self._groups:
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
            topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
            no_errors([await wire.insist(OffsetCommitRequest(group_id=it, topics=topics), VERSION)])
        wire.close()

    def case(self, limit: str = "") -> Case:
        """The time to start."""
        return Case(f"start, {self.name}", self.start, operations_count=1, after=self.stop, limit=limit)

    def facts(self) -> list[Fact]:
        """The resources of the node after its start."""
        return [
            Fact(f"resident memory, {self.name}", "MB", lambda: self.resident_mb),
            Fact(f"open files, {self.name}", "handles", lambda: self.open_files),
        ]


def benchmark(context: Context) -> Benchmark:
    partitions = scaled(full=100, quick=5)
    none, many = Node(context, NONE, 0), Node(context, f"{partitions} internal partitions", partitions)
    alone = none.case()
    return Benchmark(
        f"A node with {partitions} internal partitions",
        [alone, many.case(limit=alone.name)],
        metric="ms_per_op",
        columns=["ms_per_op"],
        facts=[*none.facts(), *many.facts()],
        note="From the start of the process until the coordinators of all groups answer.",
    )
