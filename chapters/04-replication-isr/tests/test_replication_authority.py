"""The commands that change leaders and in-sync sets: what is accepted, and which error codes refuse the rest."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions_broker import Write
from replication_nodes import ENDPOINTS, TOPIC_ID, AuthorityNode

from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import decide as hold
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker.replication import authority as commands
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

NAME = TopicPartition("orders", 0)


class Authority(AuthorityNode):
    """Three nodes, and a partition whose first replica leads."""

    def __init__(self, **configs: str) -> None:
        super().__init__()
        self.epochs = {node_id: self.register(node_id) for node_id in (1, 2, 3)}
        self.create([1, 2, 3], **configs)

    def ask(
        self,
        isr: Sequence[tuple[int, int]],
        *,
        topic_id: bytes = TOPIC_ID,
        partition: int = 0,
        leader_epoch: int = 0,
        partition_epoch: int = 0,
        broker_id: int = 1,
        broker_epoch: int = -1,
    ) -> commands.AlteredPartition:
        change = commands.IsrChange(topic_id, partition, leader_epoch, partition_epoch, isr)
        (altered,) = self.voter.propose(commands.AlterPartitions(broker_id, broker_epoch, [change])).result
        return altered

    def shrink(self, *isr: int) -> None:
        now = self.partition
        altered = self.ask(
            [(it, -1) for it in isr],
            leader_epoch=now.leader_epoch,
            partition_epoch=now.partition_epoch,
            broker_id=now.leader,
        )
        assert altered.code == ErrorCode.NONE, altered

    def elect(
        self, *live: int, kind: commands.Election = commands.Election.PREFERRED, node: NodeConfig | None = None
    ) -> commands.Elected:
        (elected,) = self.voter.propose(commands.ElectLeaders([NAME], live, node or NodeConfig(), kind)).result
        return elected

    def lose_all_in_sync(self, last_leader: int = -1) -> None:
        """No replica is in sync, and there is no leader."""
        record = PartitionChangeRecord(
            partition_id=0, topic_id=TOPIC_ID, isr=[], leader=NO_LEADER, last_known_elr=[last_leader]
        )
        self.voter.propose(Write([record]))

    @property
    def state(self) -> tuple[int, int, tuple[int, ...], int]:
        """The leader, the leader epoch, the in-sync set and the partition epoch."""
        it = self.partition
        return it.leader, it.leader_epoch, it.isr, it.partition_epoch


@pytest.fixture
def authority() -> Authority:
    return Authority()


# Altering in-sync sets ------------------------------------------------------------------------------------------------


def test_a_leader_changes_its_in_sync_set_and_the_partition_epoch_rises(authority: Authority) -> None:
    """KIP-497."""
    altered = authority.ask([(1, authority.epochs[1]), (3, authority.epochs[3])], broker_epoch=authority.epochs[1])
    assert altered == commands.AlteredPartition(TOPIC_ID, 0, leader=1, leader_epoch=0, isr=(1, 3), partition_epoch=1)
    assert authority.state == (1, 0, (1, 3), 1)


def test_a_set_that_is_the_same_is_accepted_and_changes_nothing(authority: Authority) -> None:
    offset = authority.image.offset
    altered = authority.ask([(3, -1), (1, -1), (2, -1)])
    assert (altered.code, altered.isr, altered.partition_epoch) == (ErrorCode.NONE, (1, 2, 3), 0)
    assert authority.image.offset == offset


def test_an_outdated_proposal_is_refused() -> None:
    """KIP-497: a compare-and-set. A leader with a later epoch knows a decision that this controller does not know."""
    # The partition is in leader epoch 1 and partition epoch 2, and node 2 leads.
    cases = [
        (1, 2, ErrorCode.NONE),
        (0, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (0, 1, ErrorCode.FENCED_LEADER_EPOCH),
        (1, 1, ErrorCode.INVALID_UPDATE_VERSION),
        (1, 3, ErrorCode.NOT_CONTROLLER),
        (2, 2, ErrorCode.NOT_CONTROLLER),
        (2, 1, ErrorCode.NOT_CONTROLLER),
        (0, 3, ErrorCode.NOT_CONTROLLER),
    ]
    for leader_epoch, partition_epoch, code in cases:
        with case(leader_epoch, partition_epoch, code):
            authority = Authority()
            authority.shrink(1, 2)
            authority.elect(2)
            before = authority.state
            assert before == (2, 1, (1, 2), 2)
            altered = authority.ask([(2, -1)], broker_id=2, leader_epoch=leader_epoch, partition_epoch=partition_epoch)
            assert altered.code == code
            assert (authority.state == before) == (code != ErrorCode.NONE)


def test_an_impossible_in_sync_set_is_refused() -> None:
    cases = {
        "without the leader": ([2, 3], ErrorCode.INVALID_REQUEST),
        "empty": ([], ErrorCode.INVALID_REQUEST),
        "twice": ([1, 2, 2], ErrorCode.INVALID_REQUEST),
        "no replica": ([1, 4], ErrorCode.INVALID_REQUEST),
    }
    for name, (isr, code) in cases.items():
        with case(name):
            authority = Authority()
            authority.register(4)
            assert authority.ask([(it, -1) for it in isr]).code == code
            assert authority.state == (1, 0, (1, 2, 3), 0)


def test_only_the_leader_may_propose(authority: Authority) -> None:
    altered = authority.ask([(1, -1), (2, -1)], broker_id=2)
    assert altered.code == ErrorCode.INVALID_REQUEST
    assert "broker 2 does not lead the partition, broker 1 does" in (altered.message or "")


def test_a_proposal_with_a_stale_broker_epoch_is_refused(authority: Authority) -> None:
    assert authority.ask([(1, -1)], broker_epoch=authority.epochs[1] + 1).code == ErrorCode.STALE_BROKER_EPOCH
    assert authority.ask([(9, -1)], broker_id=9).code == ErrorCode.STALE_BROKER_EPOCH
    assert authority.state == (1, 0, (1, 2, 3), 0)


def test_a_member_with_a_stale_broker_epoch_cannot_be_in_sync(authority: Authority) -> None:
    """KIP-903: it may have lost the records that it fetched then."""
    authority.shrink(1, 2)
    known = authority.epochs[3]
    authority.register(3)
    altered = authority.ask([(1, -1), (2, -1), (3, known)], partition_epoch=1)
    assert altered.code == ErrorCode.INELIGIBLE_REPLICA
    assert f"broker 3 with broker epoch {known} cannot be in sync" in (altered.message or "")
    assert authority.ask([(1, -1), (3, authority.image.brokers[3].epoch)], partition_epoch=1).code == ErrorCode.NONE


def test_a_fenced_broker_cannot_be_in_sync(authority: Authority) -> None:
    """KIP-841."""
    authority.voter.propose(RegisterBroker(3, ENDPOINTS, b"fenced".rjust(16), is_fenced=True))
    assert authority.ask([(1, -1), (3, -1)]).code == ErrorCode.INELIGIBLE_REPLICA


def test_a_broker_that_shuts_down_cannot_be_in_sync(authority: Authority) -> None:
    """KIP-841: it was removed from the set for its shutdown, and still fetches."""
    leaving = replace(authority.image.brokers[3], in_controlled_shutdown=True)
    image = replace(authority.image, brokers={**authority.image.brokers, 3: leaving})
    (altered,) = hold(
        image, commands.AlterPartitions(1, -1, [commands.IsrChange(TOPIC_ID, 0, 0, 0, [(1, -1), (3, -1)])])
    ).result
    assert altered.code == ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_that_is_not_registered_cannot_be_in_sync(authority: Authority) -> None:
    image = replace(authority.image, brokers={1: authority.image.brokers[1]})
    change = commands.IsrChange(TOPIC_ID, 0, 0, 0, [(1, -1), (2, -1)])
    (altered,) = hold(image, commands.AlterPartitions(1, -1, [change])).result
    assert altered.code == ErrorCode.INELIGIBLE_REPLICA
    assert "not registered" in (altered.message or "")


def test_an_unknown_topic_and_an_unknown_partition_have_codes_of_their_own(authority: Authority) -> None:
    assert authority.ask([(1, -1)], topic_id=bytes(16)).code == ErrorCode.UNKNOWN_TOPIC_ID
    assert authority.ask([(1, -1)], partition=1).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_each_partition_is_decided_by_itself(authority: Authority) -> None:
    changes = [
        commands.IsrChange(bytes(16), 0, 0, 0, [(1, -1)]),
        commands.IsrChange(TOPIC_ID, 0, 0, 0, [(1, -1), (2, -1)]),
    ]
    results = authority.voter.propose(commands.AlterPartitions(1, -1, changes)).result
    assert [it.code for it in results] == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]
    assert authority.state == (1, 0, (1, 2), 1)


# Electing leaders -----------------------------------------------------------------------------------------------------


def test_the_first_replica_that_is_in_sync_and_alive_leads_in_a_new_epoch(authority: Authority) -> None:
    authority.shrink(1, 3)
    elected = authority.elect(2, 3)
    assert (elected.code, elected.leader) == (ErrorCode.NONE, 3)
    assert authority.state == (3, 1, (1, 3), 2)


def test_a_partition_without_a_live_in_sync_replica_waits(authority: Authority) -> None:
    authority.shrink(1)
    elected = authority.elect(2, 3)
    assert (elected.code, elected.leader) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, 1)
    assert "none of the in-sync replicas [1] is alive" in (elected.message or "")
    assert authority.state == (1, 0, (1,), 1)


def test_after_an_unclean_election_only_the_leader_is_in_sync(authority: Authority) -> None:
    authority.shrink(1)
    assert authority.elect(2, 3, kind=commands.Election.UNCLEAN).leader == 2
    assert authority.state == (2, 1, (2,), 2)


def test_an_unclean_election_takes_the_longest_log_of_the_latest_leader() -> None:
    """KIP-966."""
    end = commands.LogEnd
    for ends, expected in (
        ({1: end(4, 10), 2: end(4, 12), 3: end(4, 11)}, 2),
        ({1: end(4, 10), 2: end(3, 99), 3: end(4, 11)}, 3),
        ({2: end(4, 10), 3: end(4, 10)}, 2),  # the first in the partition's order
        ({3: end(0, 0)}, 3),  # one that has not answered comes last
        ({}, 1),
        ({7: end(9, 99)}, 1),  # no replica
    ):
        with case(ends):
            authority = Authority()
            authority.lose_all_in_sync()
            command = commands.ElectLeaders(
                [NAME], (1, 2, 3), NodeConfig(), commands.Election.UNCLEAN, ends={NAME: ends}
            )
            (elected,) = authority.voter.propose(command).result
            assert (elected.leader, elected.end) == (expected, ends.get(expected))
            assert authority.partition.isr == (expected,)


def test_if_no_replica_says_where_its_log_ends_the_last_leader_is_elected_uncleanly() -> None:
    authority = Authority()
    authority.lose_all_in_sync(last_leader=3)
    assert authority.elect(1, 2, 3, kind=commands.Election.UNCLEAN).leader == 3
    authority = Authority()
    authority.lose_all_in_sync(last_leader=3)
    assert authority.elect(1, 2, kind=commands.Election.UNCLEAN).leader == 1


def test_an_unclean_election_prefers_a_replica_in_sync(authority: Authority) -> None:
    authority.shrink(1, 3)
    assert authority.elect(2, 3, kind=commands.Election.UNCLEAN).leader == 3
    assert authority.state == (3, 1, (1, 3), 2)


def test_a_topic_may_allow_unclean_elections_for_good() -> None:
    authority = Authority(unclean_leader_election_enable="true")
    authority.shrink(1)
    assert authority.elect(3).leader == 3
    assert authority.state == (3, 1, (3,), 2)


def test_a_node_may_allow_unclean_elections_for_all_topics(authority: Authority) -> None:
    authority.shrink(1)
    assert authority.elect(3, node=NodeConfig({"unclean.leader.election.enable": "true"})).leader == 3


def test_an_unclean_election_without_a_live_replica_is_refused(authority: Authority) -> None:
    elected = authority.elect(kind=commands.Election.UNCLEAN)
    assert elected.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    # A node that is alive but not registered does not count.
    assert authority.elect(7, kind=commands.Election.UNCLEAN).code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_a_preferred_election_moves_a_partition_back_to_its_first_replica(authority: Authority) -> None:
    authority.elect(2)
    assert authority.elect(1, 2, 3).leader == 1
    assert authority.state == (1, 2, (1, 2, 3), 2)


def test_a_preferred_election_elects_only_the_first_replica(authority: Authority) -> None:
    authority.elect(3)
    elected = authority.elect(2, 3)
    assert (elected.code, elected.leader) == (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 3)
    authority.shrink(2, 3)
    assert authority.elect(1, 2, 3).code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert authority.state == (3, 1, (2, 3), 2)


def test_no_election_is_needed_if_the_preferred_replica_leads(authority: Authority) -> None:
    assert authority.elect(1, 2, 3).code == ErrorCode.ELECTION_NOT_NEEDED
    assert authority.elect(1, 2, 3, kind=commands.Election.UNCLEAN).code == ErrorCode.ELECTION_NOT_NEEDED
    authority.elect(2)
    assert authority.elect(1, 2, 3, kind=commands.Election.UNCLEAN).code == ErrorCode.ELECTION_NOT_NEEDED
    assert authority.state == (2, 1, (1, 2, 3), 1)


def test_an_election_of_an_unknown_partition_is_refused() -> None:
    for name in [TopicPartition("unknown", 0), TopicPartition("orders", 1)]:
        with case(name):
            authority = Authority()
            (elected,) = authority.voter.propose(commands.ElectLeaders([name, name], [1], NodeConfig())).result
            assert (elected.code, elected.leader) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_LEADER)


# Registering again ----------------------------------------------------------------------------------------------------


def test_a_leader_with_complete_logs_leads_on_in_a_new_epoch(authority: Authority) -> None:
    epoch = authority.register(1, previous_broker_epoch=authority.epochs[1])
    assert epoch > authority.epochs[1]
    assert authority.state == (1, 1, (1, 2, 3), 1)


def test_a_follower_with_complete_logs_stays_in_sync(authority: Authority) -> None:
    authority.register(2, previous_broker_epoch=authority.epochs[2])
    assert authority.state == (1, 0, (1, 2, 3), 0)


def test_a_broker_that_may_have_lost_records_leaves_the_in_sync_set() -> None:
    """KIP-966: a power cut loses what was only in the page cache, although it was counted as replicated."""
    for previous in ["none", "an older one"]:
        with case(previous):
            authority = Authority()
            authority.register(2, previous_broker_epoch=-1 if previous == "none" else authority.epochs[1])
            assert authority.state == (1, 0, (1, 3), 1)


def test_a_leader_that_may_have_lost_records_is_replaced_by_one_in_sync(authority: Authority) -> None:
    authority.shrink(1, 3)
    authority.register(1)
    assert authority.state == (3, 1, (3,), 2)


def test_a_fenced_broker_does_not_replace_a_leader_that_may_have_lost_records(authority: Authority) -> None:
    authority.voter.propose(RegisterBroker(2, ENDPOINTS, b"fenced".rjust(16), is_fenced=True))
    authority.register(1)
    assert authority.state == (3, 1, (2, 3), 1)


def test_a_partition_whose_last_in_sync_replica_may_have_lost_records_has_no_leader(authority: Authority) -> None:
    """KIP-966, "last replica standing": only an unclean election can elect a leader."""
    authority.shrink(1)
    authority.register(1)
    assert authority.partition.isr == ()
    assert authority.partition.leader == NO_LEADER
    assert authority.elect(1, 2, 3).code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert authority.elect(2, 3, kind=commands.Election.UNCLEAN).leader == 2
    assert authority.state == (2, 2, (2,), 3)


def test_a_sole_replica_always_counts_as_complete() -> None:
    """No other replica has the records that a power cut took, so waiting for one would last for ever."""
    alone = AuthorityNode()
    alone.register(1)
    alone.create([1])
    alone.register(1)
    assert (alone.partition.leader, alone.partition.leader_epoch, alone.partition.isr) == (1, 1, (1,))


def test_a_broker_that_was_not_in_sync_changes_nothing(authority: Authority) -> None:
    authority.shrink(1, 3)
    authority.register(2)
    assert authority.state == (1, 0, (1, 3), 1)


def test_a_process_that_registers_twice_changes_nothing(authority: Authority) -> None:
    """The first answer was lost, so it registers again."""
    command = commands.RegisterReplicas(1, ENDPOINTS, b"again".rjust(16), previous_broker_epoch=authority.epochs[1])
    first = authority.voter.propose(command).result
    state = authority.state
    assert authority.voter.propose(command).result == first
    assert authority.state == state == (1, 1, (1, 2, 3), 1)


def test_a_registration_and_its_partition_changes_are_one_batch(authority: Authority) -> None:
    """Otherwise a reader could see the new incarnation of a node as a member of the old in-sync set."""
    seen: list[tuple[int, tuple[int, ...]]] = []
    authority.voter.subscribe(
        lambda _old, new: seen.append((new.brokers[2].epoch, new.topics["orders"].partitions[0].isr))
    )
    epoch = authority.register(2)
    assert seen == [(epoch, (1, 3))]


# Any decisions in any order -------------------------------------------------------------------------------------------

NODES = st.sampled_from([1, 2, 3])
DECISIONS = st.one_of(
    st.tuples(st.just("alter"), NODES, st.sets(NODES), st.integers(-1, 1)),
    st.tuples(st.just("elect"), st.sets(NODES), st.sampled_from(commands.Election)),
    st.tuples(st.just("register"), NODES, st.booleans()),
)


def decide(authority: Authority, name: str, *arguments: object) -> None:
    now = authority.partition
    if name == "alter":
        broker_id, members, off = arguments
        assert isinstance(broker_id, int)
        assert isinstance(members, set)
        assert isinstance(off, int)
        authority.ask(
            [(it, -1) for it in sorted(members)],
            broker_id=broker_id,
            leader_epoch=now.leader_epoch,
            partition_epoch=now.partition_epoch + off,
        )
    elif name == "elect":
        live, kind = arguments
        assert isinstance(live, set)
        assert isinstance(kind, commands.Election)
        authority.elect(*live, kind=kind)
    else:
        node_id, has_all = arguments
        assert isinstance(node_id, int)
        known = authority.image.brokers[node_id].epoch
        authority.register(node_id, previous_broker_epoch=known if has_all else -1)


def check_step(old: PartitionImage, new: PartitionImage) -> None:
    assert new.partition_epoch - old.partition_epoch == (new != old)
    assert new.leader_epoch - old.leader_epoch in (0, 1)
    # Within an epoch the leader stays; it is in sync; and every in-sync replica is a replica.
    assert new.leader == old.leader or new.leader_epoch > old.leader_epoch
    assert new.leader == NO_LEADER or new.leader in new.isr
    assert set(new.isr) <= set(new.replicas) == {1, 2, 3}


@settings(max_examples=50, deadline=None)
@given(st.lists(DECISIONS, max_size=15))
def test_after_any_decisions_epochs_rise_and_the_leader_is_in_sync(decisions: list[tuple[str, object]]) -> None:
    authority = Authority()
    for decision in decisions:
        old = authority.partition
        decide(authority, *decision)
        check_step(old, authority.partition)
    # All of it is in the metadata log: replaying the log gives the same image.
    assert AuthorityNode(authority.files).image == authority.image
