"""Claims about partitions that move from broker to broker (KIP-455)."""

from collections.abc import Sequence

from controller_nodes import ORDERS, ORDERS_ID, Metadata

from minibroker.controller.fencing import FenceBroker
from minibroker.controller.reassignment import (
    Move,
    Moved,
    ReassignPartitions,
    alter_moving_partitions,
    elect_moving_leaders,
)
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import NO_LEADER
from minibroker.metadata.topic_commands import CreatePartitions, MorePartitions
from minibroker.replication.authority import AlteredPartition, Election, ElectLeaders, IsrChange
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode


def moving(*brokers: int, assignments: Sequence[list[int]] = ([1, 2, 3],)) -> Metadata:
    metadata = Metadata(*brokers)
    metadata.create(*assignments)
    return metadata


def move(metadata: Metadata, target: list[int] | None, number: int = 0) -> Moved:
    (moved,) = metadata.do(ReassignPartitions([Move(TopicPartition("orders", number), target)]))
    assert isinstance(moved, Moved)
    return moved


def change(metadata: Metadata, isr: Sequence[int], number: int = 0) -> IsrChange:
    it = metadata.partition(number)
    members = [(broker_id, metadata.epochs[broker_id]) for broker_id in isr]
    return IsrChange(ORDERS_ID, number, it.leader_epoch, it.partition_epoch, members)


def alter(metadata: Metadata, isr: Sequence[int], number: int = 0) -> AlteredPartition:
    leader = metadata.partition(number).leader
    command = alter_moving_partitions(leader, metadata.epochs[leader], [change(metadata, isr, number)])
    (altered,) = metadata.do(command)
    assert isinstance(altered, AlteredPartition)
    return altered


def test_a_move_has_both_the_old_replicas_and_the_new_until_the_new_are_in_sync() -> None:
    metadata = moving(1, 2, 3, 4)
    assert move(metadata, [2, 3, 4]).code is ErrorCode.NONE
    it = metadata.partition()
    assert (it.replicas, it.adding_replicas, it.removing_replicas) == ((2, 3, 4, 1), (4,), (1,))
    assert (it.leader, it.leader_epoch, it.isr) == (1, 0, (1, 2, 3))
    alter(metadata, [1, 2])
    assert metadata.partition().replicas == (2, 3, 4, 1)
    # The new replica is in sync, but replica 3 is not: acks=all has counted on replica 1 in its place.
    alter(metadata, [1, 2, 4])
    assert metadata.partition().replicas == (2, 3, 4, 1)
    altered = alter(metadata, [1, 2, 4, 3])
    it = metadata.partition()
    assert (it.replicas, it.adding_replicas, it.removing_replicas) == ((2, 3, 4), (), ())
    assert (it.leader, it.leader_epoch, it.isr) == (2, 1, (2, 4, 3))
    # The old leader has lost its leadership and its place in the in-sync set: the response has no set for it.
    assert (altered.code, altered.isr) == (ErrorCode.NEW_LEADER_ELECTED, ())


def test_the_removal_of_a_replica_begins_a_leader_epoch() -> None:
    """A replica that is added again before it has learnt of its removal must not count as in sync."""
    metadata = moving(1, 2, 3, 4)
    move(metadata, [1, 2, 4])
    assert metadata.partition().leader_epoch == 0
    altered = alter(metadata, [1, 2, 3, 4])
    it = metadata.partition()
    assert (it.replicas, it.isr, it.leader, it.leader_epoch) == ((1, 2, 4), (1, 2, 4), 1, 1)
    # The same broker leads in a new epoch, and learns of it from the metadata.
    assert (altered.code, altered.isr) == (ErrorCode.NEW_LEADER_ELECTED, ())
    move(metadata, [1, 2, 3])
    move(metadata, None)
    assert (metadata.partition().leader, metadata.partition().leader_epoch) == (1, 2)


def test_the_leader_epoch_continues_if_no_replica_is_removed() -> None:
    metadata = moving(1, 2, 3, 4)
    move(metadata, [1, 2, 3, 4])
    altered = alter(metadata, [1, 2, 3, 4])
    assert (altered.code, altered.isr) == (ErrorCode.NONE, (1, 2, 3, 4))
    assert altered.partition_epoch == metadata.partition().partition_epoch
    assert (metadata.partition().adding_replicas, metadata.partition().leader_epoch) == ((), 0)


def test_a_move_without_new_replicas_is_complete_at_once() -> None:
    metadata = moving(1, 2, 3)
    move(metadata, [3, 1, 2])
    assert metadata.partition().replicas == (3, 1, 2)
    move(metadata, [2, 1])
    it = metadata.partition()
    assert (it.replicas, it.isr, it.leader, it.removing_replicas) == ((2, 1), (1, 2), 1, ())
    epoch = it.partition_epoch
    move(metadata, [2, 1])
    assert metadata.partition().partition_epoch == epoch


def test_a_replica_is_removed_when_all_others_are_in_sync() -> None:
    metadata = moving(1, 2, 3)
    alter(metadata, [1, 2])
    move(metadata, [2, 3])
    assert (metadata.partition().replicas, metadata.partition().removing_replicas) == ((2, 3, 1), (1,))
    alter(metadata, [1, 2, 3])
    assert (metadata.partition().replicas, metadata.partition().removing_replicas) == ((2, 3), ())


def test_a_move_is_cancelled() -> None:
    metadata = moving(1, 2, 3, 4, 5)
    move(metadata, [4, 5])
    alter(metadata, [1, 2, 3, 4])
    assert move(metadata, None).code is ErrorCode.NONE
    it = metadata.partition()
    assert (set(it.replicas), it.adding_replicas, it.removing_replicas) == ({1, 2, 3}, (), ())
    assert (set(it.isr), it.leader) == ({1, 2, 3}, 1)
    assert move(metadata, None).code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancelled_move_elects_no_fenced_broker() -> None:
    """The last in-sync replica is fenced: it leads when it is unfenced, and not before."""
    metadata = moving(1, 2, 3, 4, assignments=([1, 2],))
    move(metadata, [3, 4])
    metadata.do(FenceBroker(2))
    metadata.do(FenceBroker(1))
    assert (metadata.partition().leader, metadata.partition().isr) == (NO_LEADER, (1,))
    assert move(metadata, None).code is ErrorCode.NONE
    assert metadata.partition().leader == NO_LEADER
    metadata.heartbeat(1)
    assert metadata.partition().leader == 1


def test_a_move_is_not_cancelled_if_only_new_replicas_are_in_sync() -> None:
    metadata = moving(1, 2, 3, 4, assignments=([1],))
    move(metadata, [2, 3])
    alter(metadata, [1, 2])
    metadata.do(FenceBroker(1))
    assert (metadata.partition().leader, metadata.partition().isr) == (2, (2,))
    assert move(metadata, None).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_move_that_replaces_another_keeps_the_in_sync_set_within_the_replicas() -> None:
    metadata = moving(1, 2, 3, 4, 5)
    move(metadata, [4, 5, 3])
    alter(metadata, [1, 2, 3, 4])
    metadata.do(FenceBroker(1))
    assert metadata.partition().leader == 4
    move(metadata, [2, 3, 1])
    it = metadata.partition()
    assert (it.replicas, set(it.isr), it.removing_replicas) == ((2, 3, 1, 4, 5), {2, 3, 4}, (4, 5))
    metadata.heartbeat(1)
    alter(metadata, [2, 3, 4, 1])
    it = metadata.partition()
    assert (it.replicas, set(it.isr), it.removing_replicas) == ((2, 3, 1), {1, 2, 3}, ())
    assert it.leader == 2


def test_an_only_replica_leads_again_also_during_a_move() -> None:
    """Its broker comes back after a power cut, and the target replica was never in sync."""
    metadata = moving(1, 2, 3, assignments=([1],))
    move(metadata, [2])
    metadata.do(FenceBroker(1))
    metadata.register(1, incarnation=1, previous=-1)
    metadata.heartbeat(1)
    assert (metadata.partition().leader, metadata.partition().isr) == (1, (1,))


def test_a_replica_added_by_a_move_counts_as_in_sync() -> None:
    metadata = moving(1, 2, 3, assignments=([1],))
    move(metadata, [2, 3])
    alter(metadata, [1, 2])
    metadata.register(1, incarnation=1, previous=-1)
    assert (metadata.partition().leader, metadata.partition().isr) == (2, (2,))


def elect_uncleanly(metadata: Metadata) -> None:
    command = elect_moving_leaders([ORDERS], metadata.image.live_brokers(), NodeConfig(), Election.UNCLEAN)
    (elected,) = metadata.do(command)
    assert elected.code is ErrorCode.NONE


def test_an_unclean_election_prefers_old_replicas_to_new_ones() -> None:
    metadata = moving(1, 2, 3, 4, assignments=([1, 2],))
    alter(metadata, [1])
    move(metadata, [3, 4])
    metadata.do(FenceBroker(1))
    elect_uncleanly(metadata)
    assert (metadata.partition().leader, metadata.partition().isr) == (2, (2,))


def test_an_unclean_election_ends_a_move_if_only_target_replicas_are_in_sync() -> None:
    metadata = moving(1, 2, 3, assignments=([1],))
    move(metadata, [2])
    metadata.do(FenceBroker(1))
    elect_uncleanly(metadata)
    it = metadata.partition()
    assert (it.replicas, it.isr, it.leader, it.removing_replicas) == ((2,), (2,), 2, ())


def test_a_move_is_cancelled_while_no_replica_is_in_sync() -> None:
    metadata = moving(1, 2, 3, assignments=([1, 2],))
    alter(metadata, [1])
    move(metadata, [3, 2])
    metadata.register(1, incarnation=1, previous=-1)
    assert (metadata.partition().leader, metadata.partition().isr) == (NO_LEADER, ())
    assert move(metadata, None).code is ErrorCode.NONE
    assert (metadata.partition().replicas, metadata.partition().leader) == ((2, 1), NO_LEADER)


def test_new_partitions_have_as_many_replicas_as_the_topic_also_while_it_is_moved() -> None:
    metadata = moving(1, 2, 3, 4)
    move(metadata, [2, 3, 4])
    metadata.do(CreatePartitions([MorePartitions("orders", 2)]))
    assert len(metadata.partition(1).replicas) == 3


def test_the_end_of_a_move_concerns_no_other_partition_of_the_topic() -> None:
    """One request may change one partition and repeat the set of another, which is being moved."""
    metadata = moving(1, 2, 3, 4, assignments=([1, 2], [1, 2]))
    alter(metadata, [1], 0)
    move(metadata, [1, 3], 1)
    changes = [change(metadata, [1, 2], 0), change(metadata, [1, 2], 1)]
    altered = metadata.do(alter_moving_partitions(1, metadata.epochs[1], changes))
    assert [it.code for it in altered] == [ErrorCode.NONE, ErrorCode.NONE]
    assert (metadata.partition(0).replicas, set(metadata.partition(0).isr)) == ((1, 2), {1, 2})
    assert metadata.partition(1).adding_replicas == (3,)


def test_a_broker_that_is_shutting_down_cannot_join_the_in_sync_set() -> None:
    metadata = moving(1, 2, 3)
    metadata.heartbeat(2, wants_shut_down=True)
    assert metadata.partition().isr == (1, 3)
    assert alter(metadata, [1, 2, 3]).code is ErrorCode.INELIGIBLE_REPLICA
    assert metadata.heartbeat(2, wants_shut_down=True).may_shut_down


def test_a_refusal_because_of_a_fenced_broker_is_final() -> None:
    """A duplicate of the request may arrive when the broker is live again, after the leader has dropped it."""
    metadata = moving(1, 2, 3)
    metadata.do(FenceBroker(2))
    asked = alter_moving_partitions(1, metadata.epochs[1], [change(metadata, [1, 2, 3])])
    assert [it.code for it in metadata.do(asked)] == [ErrorCode.INELIGIBLE_REPLICA]
    metadata.heartbeat(2)
    assert 2 in metadata.image.live_brokers()
    assert [it.code for it in metadata.do(asked)] == [ErrorCode.INVALID_UPDATE_VERSION]
    assert set(metadata.partition().isr) == {1, 3}
    assert alter(metadata, [1, 2, 3]).code is ErrorCode.NONE


def test_a_broker_that_was_fenced_since_the_request_is_not_elected() -> None:
    metadata = moving(1, 2, 3, assignments=([2, 1, 3],))
    live = metadata.image.live_brokers()
    metadata.do(FenceBroker(2))
    (elected,) = metadata.do(ElectLeaders([ORDERS], live, NodeConfig({})))
    assert elected.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert metadata.partition().leader == 1


def test_invalid_moves_are_refused_one_by_one() -> None:
    metadata = moving(1, 2, 3)
    assert move(metadata, [1, 9]).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(metadata, [1, 1]).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(metadata, []).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(metadata, [1], 7).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    both = metadata.do(ReassignPartitions([Move(ORDERS, [1]), Move(ORDERS, [2])]))
    assert [it.code for it in both] == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    assert metadata.partition().replicas == (1, 2, 3)
