"""A follower truncates its log to where both logs are the same, and no further."""

from collections.abc import Sequence

from cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from replication_nodes import ReplicaNode, batch_of, contents

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.partition import EpochEnd
from minibroker.replication.epochs import EpochCache
from minibroker.replication.follower import Following, Position, common_end

NODES = (1, 2, 3)


def epochs_of(*entries: tuple[int, int]) -> EpochCache:
    cache = EpochCache(MemoryFiles(), "data/orders-0")
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def test_a_follower_names_its_end_and_the_epoch_of_its_last_record() -> None:
    following = Following(2, 7)
    epochs = epochs_of((3, 0), (5, 40))
    asked = following.position(epochs, log_start_offset=10, log_end_offset=60)
    assert asked == Position(
        leader=2, leader_epoch=7, fetch_offset=60, last_fetched_epoch=5, log_start_offset=10, is_lost=False
    )
    following.is_lost = True
    assert following.position(epochs, log_start_offset=10, log_end_offset=60).is_lost


# Our log: epoch 3 from 10, epoch 5 from 40, epoch 8 from 70, its end is 90.
OURS = [(3, 10), (5, 40), (8, 70)]


def test_a_log_is_truncated_where_it_diverges_from_the_leaders() -> None:
    """KIP-101, and KIP-279 for an epoch that only one of the two has."""
    cases = {
        "the leader has less of our last epoch": (EpochEnd(8, 80), 80),
        "the leader has less of an epoch": (EpochEnd(5, 60), 60),
        "the leader has more of an epoch": (EpochEnd(5, 100), 70),
        "an epoch that we do not have between ours": (EpochEnd(7, 75), 70),
        "however far the leader has it": (EpochEnd(4, 100), 40),
        "all our epochs are later": (EpochEnd(2, 50), 10),
        "all our epochs are later and our log starts later": (EpochEnd(2, 5), 5),
    }
    for name, (leaders, expected) in cases.items():
        with case(name):
            assert common_end(leaders, epochs_of(*OURS), log_end_offset=90) == expected


def test_a_log_without_epochs_is_truncated_to_the_leaders_end() -> None:
    assert common_end(EpochEnd(3, 5), epochs_of(), log_end_offset=20) == 5
    assert common_end(EpochEnd(3, 25), epochs_of(), log_end_offset=20) == 20


# Any two logs ---------------------------------------------------------------------------------------------------------


class History:
    """Three nodes whose leader changes often, and some nodes learn of it late, so that their logs diverge."""

    def __init__(self) -> None:
        self.nodes = {node_id: ReplicaNode(node_id, TopicConfig({})) for node_id in NODES}
        self.epoch = 0
        self.count = 0

    def lead(self, node_id: int, told: Sequence[int] = NODES) -> None:
        """A node leads in a new epoch, in sync or not; it and some other nodes know that."""
        self.epoch += 1
        image = PartitionImage(NODES, (node_id,), node_id, self.epoch, self.epoch)
        for it in {node_id, *told}:
            self.nodes[it].replica.on_partition(image, {}, 0)

    def produce(self, node_id: int, count: int) -> None:
        """A node that believes to lead appends batches with unique records."""
        replica = self.nodes[node_id].replica
        if replica.leading is not None:
            values = [f"{node_id}-{self.count + number}".encode() for number in range(count)]
            self.nodes[node_id].local.append(memoryview(batch_of(*values)), acks=1, now_ms=0)
            self.count += count

    def fetch(self, node_id: int, batches: int = 1) -> bool:
        """A follower fetches once; return whether its log diverges."""
        follower = self.nodes[node_id]
        position = follower.replica.position()
        if position is None:
            return False
        fetched = follower.fetch(self.nodes[position.leader], position, 0, bytes_max=batches * 80)
        follower.replica.on_fetched(fetched)
        return fetched.diverging is not None


STEPS = st.one_of(
    st.tuples(st.just("lead"), st.sampled_from(NODES), st.sets(st.sampled_from(NODES)).map(sorted)),
    st.tuples(st.just("produce"), st.sampled_from(NODES), st.integers(1, 3)),
    st.tuples(st.just("produce"), st.sampled_from(NODES), st.integers(1, 3)),
    st.tuples(st.just("fetch"), st.sampled_from(NODES), st.integers(1, 3)),
    st.tuples(st.just("fetch"), st.sampled_from(NODES), st.integers(1, 3)),
)


def common(ours: list[tuple[int, int, bytes]], theirs: list[tuple[int, int, bytes]]) -> int:
    """How many records both logs begin with."""
    pairs = zip(ours, theirs, strict=False)
    return next((index for index, (one, two) in enumerate(pairs) if one != two), min(len(ours), len(theirs)))


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(STEPS, min_size=5, max_size=25),
    pair=st.permutations(NODES),
    adds=st.booleans(),
)
def test_any_two_logs_are_truncated_to_their_common_prefix(
    steps: list[tuple[str, int, int]], pair: Sequence[int], adds: bool
) -> None:
    leader, follower = pair[:2]
    history = History()
    history.lead(1)
    for name, node_id, argument in steps:
        getattr(history, name)(node_id, argument)
    history.lead(leader)
    if adds:
        history.produce(leader, 2)
    ours, theirs = history.nodes[follower].replica, history.nodes[leader].replica
    before = contents(ours)
    expected = common(before, contents(theirs))
    # Each round goes back by at least one epoch, so it ends.
    rounds = len(ours.epochs.entries) + 1
    while history.fetch(follower):
        rounds -= 1
        assert rounds > 0, "it does not end"
        assert ours.log.log_end_offset >= expected, "it has gone back too far"
    assert [it for it in contents(ours) if it in before] == before[:expected]
    # After that the follower only copies.
    while ours.log.log_end_offset < theirs.log.log_end_offset:
        assert not history.fetch(follower)
    assert contents(ours) == contents(theirs)
    assert ours.epochs.entries == [it for it in theirs.epochs.entries if it.start_offset < theirs.log.log_end_offset]
