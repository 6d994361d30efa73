"""A healthy cluster is quiet: normal work and a controlled restart of a node are no reason for a warning."""

import re
from pathlib import Path

import pytest
from brokers import IS_OURS, unique
from clients_stock import Message, admin, confluent_write
from clusters import QuorumCluster, Sender
from groups_crews import Crew, poll_until

SETTINGS = (
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "offsets.topic.num.partitions=3",
    "offsets.topic.replication.factor=3",
    "group.initial.rebalance.delay.ms=0",
    # A busy machine must not look like a node that is down.
    "broker.session.timeout.ms=60000",
    "controller.quorum.fetch.timeout.ms=10000",
    "controller.quorum.election.timeout.ms=2000",
    "replica.lag.time.max.ms=60000",
)
WARNING = re.compile("^(WARNING|ERROR|CRITICAL) .*", re.MULTILINE)


def warnings(cluster: QuorumCluster, since: dict[int, int]) -> dict[int, list[str]]:
    """The warnings in the log of each node, after a position in it."""
    return {number: WARNING.findall(cluster[number].log()[position:]) for number, position in since.items()}


@pytest.mark.skipif(not IS_OURS, reason="needs nodes of its own")
def test_normal_work_and_a_restart_of_another_node_cause_no_warning(tmp_path: Path) -> None:
    with QuorumCluster(tmp_path, *SETTINGS) as cluster:
        # The voters may have waited for each other at the start.
        since = {number: len(node.log()) for number, node in cluster.nodes.items()}
        main, other, client = unique("main"), unique("other"), admin(cluster.bootstrap)
        cluster.create(main, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        with (
            Sender(cluster, main, partitions=3) as sender,
            Crew(cluster.bootstrap, [main], unique("crew")) as crew,
        ):
            # Members join and leave while records are written, and topics come, go and come again with the same name.
            crew.hire(2)
            poll_until([crew], lambda: crew.owned() == [1, 2], "two members share three partitions")
            for _ in range(3):
                cluster.create(other, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
                confluent_write(cluster.bootstrap, other, [Message(b"value")] * 100, partition=1, acks="all")
                client.delete_topics([other])[other].result(20)
                crew.dismiss(crew.members[0])
                crew.hire()
                poll_until([crew], lambda: crew.owned() == [1, 2], "two members share three partitions again")
            assert warnings(cluster, since) == {1: [], 2: [], 3: []}
            # The followers of a node that stops may notice the closed connection before they know the new leaders.
            cluster[3].stop()
            cluster[3].ready_s_max = 60.0
            cluster[3].restart()
            for partition in range(3):
                cluster.await_isr(main, 1, 2, 3, partition=partition)
            poll_until([crew], lambda: crew.owned() == [1, 2], "two members share three partitions after the restart")
            sender.finish()
        del since[3]
        assert warnings(cluster, since) == {1: [], 2: []}
