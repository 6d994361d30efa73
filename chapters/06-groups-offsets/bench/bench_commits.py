"""Commits per second of one coordinator on three nodes: a hundred clients, each with one commit under way.

`__consumer_offsets` has one partition here, so one node is the coordinator of all groups. A commit is answered when all
in-sync replicas have it. For comparison, the same clients ask the coordinator for committed offsets, which it
answers from memory.
"""

from bench.wires import Crowd, Wire, find_coordinator, framed, no_errors

from minibroker.bench import Benchmark, Case, Context, scaled
from minibroker.bench.failover import REPLICAS, SETTINGS
from minibroker.bench.local import LocalCluster
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.wire.schema import Request
from minibroker.wire.tables.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

TOPIC = "orders"
VERSION = 9
COMMITTED, FETCHED = "commit, all in sync", "fetch a committed offset"


def commit_of(number: int) -> Request:
    """A commit of a client that has a group of its own and is no member."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=number, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    return OffsetCommitRequest(group_id=f"group-{number}", topics=topics)


def fetch_of(number: int) -> Request:
    """The question for the committed offset."""
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=f"group-{number}", topics=topics)])


def benchmark(context: Context) -> Benchmark:
    clients_count, each_count = scaled(full=(100, 100), quick=(5, 3))
    settings = (*SETTINGS, "offsets.topic.num.partitions=1")
    cluster = context.cleanup.enter_context(LocalCluster.within(context, *settings))
    cluster.create(TOPIC, REPLICAS[:1])
    crowd = Crowd(context)
    address = crowd.run(find_coordinator(cluster[1].address, "group-0"))
    cluster.await_isr(GROUP_METADATA_TOPIC, 1, 2, 3)
    crowd.connect(address, clients_count)
    coordinator = next(node for node in cluster.nodes.values() if node.address == address)
    no_errors(crowd.each(lambda number, wire: wire.insist(commit_of(number), VERSION)))

    def case_of(name: str, requests: list[Request]) -> Case:
        frames = [framed(request, VERSION) for request in requests]

        async def repeat(number: int, wire: Wire) -> None:
            for _ in range(each_count):
                await wire.send(frames[number])

        def check() -> None:
            no_errors(crowd.each(lambda number, wire: wire.ask(requests[number], VERSION)))

        return Case(
            name,
            lambda: crowd.each(repeat),
            operations_count=clients_count * each_count,
            after=check,
            cpu_s=coordinator.cpu_s,
        )

    return Benchmark(
        f"Commits of {clients_count} clients on three nodes",
        [
            case_of(COMMITTED, [commit_of(it) for it in range(clients_count)]),
            case_of(FETCHED, [fetch_of(it) for it in range(clients_count)]),
        ],
        metric="ops_per_s",
        columns=["cpu_us_per_op"],
        note="One commit under way for each client; CPU time is the coordinator's.",
    )
