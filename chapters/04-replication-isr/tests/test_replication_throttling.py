"""Throttled replicas are copied at a rate, and replicas in sync are never held back (KIP-73)."""

import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st
from replication_nodes import NAME, ReplicaNode, batch_of

from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.partition import ACKS_ALL
from minibroker.replication.throttling import (
    UNLIMITED_RATE,
    Quota,
    ReplicationQuotas,
    is_throttled_follower,
    is_throttled_leader,
)
from minibroker.segments.checkpoint import TopicPartition

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"

# The rate -------------------------------------------------------------------------------------------------------------


@given(
    rate=st.sampled_from([1, 7, 1000, 10**6, 10**9]),
    fetches=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 10**6)), max_size=60),
)
def test_no_more_is_copied_than_the_rate_allows_and_one_fetch_brings(rate: int, fetches: list[tuple[int, int]]) -> None:
    """A fetch brings the free bytes, or more, because a batch is sent whole."""
    quota, now_ms, copied, largest = Quota(rate), 0, 0, 0
    for elapsed_ms, batch_bytes in fetches:
        now_ms += elapsed_ms
        free = quota.bytes_free(now_ms)
        assert (free == 0) == (quota.wait_ms(now_ms) > 0), now_ms
        if free:
            count = max(free, batch_bytes)
            quota.record(count, now_ms)
            copied, largest = copied + count, max(largest, count)
        assert copied * 1000 <= rate * (now_ms + 1000) + largest * 1000, now_ms


def test_a_fetch_after_the_wait_gets_bytes_and_the_rate_is_used_up() -> None:
    for rate in [1, 7, 1000, 10**6]:
        with case(rate):
            quota, now_ms, copied = Quota(rate), 0, 0
            while now_ms < 100_000:
                free = quota.bytes_free(now_ms)
                assert free > 0, now_ms
                quota.record(free, now_ms)
                copied += free
                while wait_ms := quota.wait_ms(now_ms):
                    now_ms += wait_ms
            assert copied >= rate * 100 * 0.9


def test_a_new_rate_counts_from_now_on_and_an_unlimited_one_forgets_the_past() -> None:
    quota = Quota(1000)
    quota.record(100_000, 0)
    assert (quota.bytes_free(50_000), quota.wait_ms(50_000)) == (0, 1000)
    quota.set_rate(49_000, 50_000)
    # Half of the bytes have leaked at the old rate; now 49,000 bytes leak each second.
    assert quota.bytes_free(50_000) == 0
    assert quota.bytes_free(51_000) == 48_000
    quota.set_rate(UNLIMITED_RATE, 51_000)
    quota.record(10**12, 51_000)
    assert quota.bytes_free(51_000) > 10**12
    quota.set_rate(0, 52_000)
    assert (quota.bytes_free(99_000), quota.wait_ms(99_000)) == (0, 1000)


def test_time_does_not_go_back_for_an_answer_that_waited() -> None:
    quota = Quota(1000)
    quota.record(2000, 5000)
    assert quota.bytes_free(4000) == quota.bytes_free(5000) == 0
    assert quota.bytes_free(6500) == 500


# Configuration --------------------------------------------------------------------------------------------------------


def test_throttled_replicas_are_named_as_partition_and_broker() -> None:
    for key in [LEADERS, FOLLOWERS]:
        with case(key):
            is_throttled = is_throttled_leader if key == LEADERS else is_throttled_follower
            cases = {
                "": False,
                "*": True,
                "0:1": True,
                "1:1": False,
                "0:2": False,
                "5:6,0:1": True,
                "0:1,": True,
                "00:01": True,
            }
            found = {text: is_throttled(TopicConfig({key: text}), NAME, 1) for text in cases}
            assert found == cases
            assert not is_throttled(TopicConfig({key: "0:1"}), TopicPartition("orders", 1), 1)
            for text in ("x", "0:1,*", "0", "a:1", "0:1:2", "0:-1", "0:1,,0:2", "99999999999:1", "0:2147483648"):
                with pytest.raises(InvalidConfig, match=r"it must be \* or a list of partition:broker"):
                    TopicConfig({key: text})


def test_rates_follow_the_configuration() -> None:
    quotas = ReplicationQuotas()
    quotas.configure(NodeConfig({LEADER_RATE: "5", FOLLOWER_RATE: "6"}), 0)
    assert (quotas.as_leader.rate, quotas.as_follower.rate) == (5, 6)
    quotas.configure(NodeConfig({}), 0)
    assert (quotas.as_leader.rate, quotas.as_follower.rate) == (UNLIMITED_RATE, UNLIMITED_RATE)
    with pytest.raises(InvalidConfig, match="at least 0"):
        NodeConfig({LEADER_RATE: "-1"})


# A leader and its followers -------------------------------------------------------------------------------------------


class Copying:
    """Node 1 leads; node 2 is in sync; node 3 has a replica that is not in sync, and nothing in it."""

    def __init__(self, leaders: str = "*", followers: str = "*") -> None:
        config = TopicConfig({LEADERS: leaders, FOLLOWERS: followers})
        self.nodes = {node_id: ReplicaNode(node_id, config) for node_id in (1, 2, 3)}
        for node in self.nodes.values():
            node.replica.on_partition(PartitionImage((1, 2, 3), (1, 2), 1, 0, 0), {}, 0)
        self.leader = self.nodes[1].local

    def quotas(self, node_id: int) -> ReplicationQuotas:
        return self.nodes[node_id].replica._quotas

    def produce(self, count: int) -> None:
        for _ in range(count):
            self.leader.append(memoryview(batch_of(b"x" * 1000)), acks=1, now_ms=0)

    def fetch(self, node_id: int, now_ms: int) -> int:
        """Fetch once as the driver does; return how many bytes came."""
        node = self.nodes[node_id]
        position, bytes_max = node.replica.position(), node.replica.fetch_bytes_max(now_ms)
        assert position is not None
        fetched = node.fetch(self.nodes[1], position, now_ms, bytes_max=bytes_max or 1 << 20)
        node.replica.on_bytes_fetched(len(fetched.records), now_ms)
        node.replica.on_fetched(fetched)
        return len(fetched.records)


def test_a_leader_sends_nothing_to_a_replica_out_of_sync_while_its_rate_is_exceeded() -> None:
    copying = Copying()
    copying.quotas(1).as_leader.set_rate(1000, 0)
    copying.produce(3)
    first = copying.fetch(3, 0)
    assert first > 3000
    copying.produce(1)
    # What was sent is counted with the follower's next fetch. The leader learns its position all the same.
    assert [copying.fetch(3, now_ms) for now_ms in (0, 1000, 2000)] == [0, 0, 0]
    assert copying.nodes[1].replica.leading is not None
    assert copying.nodes[1].replica.leading.followers[3].log_end_offset == 3
    assert copying.fetch(3, 3000) > 1000


def test_a_leader_never_holds_back_a_replica_in_sync_but_counts_what_it_sends_to_it() -> None:
    copying = Copying()
    copying.quotas(1).as_leader.set_rate(1000, 0)
    for _ in range(10):
        copying.produce(1)
        assert copying.fetch(2, 0) > 1000
    assert copying.fetch(2, 0) == 0
    assert copying.fetch(3, 0) == 0


def test_an_answer_that_is_put_together_several_times_counts_once() -> None:
    copying = Copying()
    copying.quotas(1).as_leader.set_rate(1000, 0)
    copying.produce(1)
    position = copying.nodes[3].replica.position()
    assert position is not None
    sizes = {len(copying.nodes[3].fetch(copying.nodes[1], position, 0, is_retry=it > 0).records) for it in range(5)}
    assert len(sizes) == 1
    quota = copying.quotas(1).as_leader
    assert quota.bytes_free(0) == 1000
    copying.fetch(3, 0)
    assert quota.bytes_free(0) == 0
    assert quota.wait_ms(0) < 500


def test_only_the_named_replicas_are_throttled() -> None:
    copying = Copying(leaders="0:2,1:1", followers="1:3,0:1")
    copying.quotas(1).as_leader.set_rate(0, 0)
    copying.quotas(3).as_follower.set_rate(0, 0)
    copying.produce(3)
    assert copying.nodes[3].replica.fetch_bytes_max(0) is None
    assert copying.fetch(3, 0) > 3000


def test_a_follower_fetches_no_more_than_its_rate_allows_until_it_has_caught_up() -> None:
    copying = Copying(leaders="")
    follower = copying.nodes[3].replica
    copying.quotas(3).as_follower.set_rate(2000, 0)
    copying.produce(5)
    copying.fetch(2, 0)
    copying.fetch(2, 0)
    assert copying.nodes[1].replica.high_watermark == 5
    assert follower.fetch_bytes_max(0) == 2000
    # One batch and a part of the next one were sent, and all these bytes count.
    assert copying.fetch(3, 0) == 2000
    assert (follower.log.log_end_offset, follower.fetch_bytes_max(0)) == (1, 0)
    now_ms = 0
    while follower.log.log_end_offset < 5:
        now_ms += 100
        if follower.fetch_bytes_max(now_ms) != 0:
            copying.fetch(3, now_ms)
    assert 1000 <= now_ms <= 3000, now_ms
    # It has reached the high watermark, so it is not throttled any more.
    assert follower.fetch_bytes_max(now_ms) is None
    copying.leader.append(memoryview(batch_of(b"y" * 9000)), acks=ACKS_ALL, now_ms=0)
    assert copying.fetch(3, now_ms) > 9000
