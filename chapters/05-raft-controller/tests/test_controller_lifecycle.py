"""Claims about brokers that register, fall silent and shut down, and about the leaders of their partitions."""

from cases import case
from controller_nodes import ORDERS, Metadata

from minibroker.controller.fencing import FenceBroker, LeadUncleanly
from minibroker.controller.lifecycle import Heartbeat, UnregisterBroker
from minibroker.controller.reassignment import Move, ReassignPartitions, alter_moving_partitions
from minibroker.controller.sessions import Sessions
from minibroker.controller.snapshot import records_of
from minibroker.metadata.broker_commands import AllocateProducerIds
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import NO_LEADER, Image, fold_all
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.replication.authority import IsrChange
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

# Sessions -------------------------------------------------------------------------------------------------------------


def test_a_session_is_over_when_nothing_was_heard_for_its_whole_time() -> None:
    sessions = Sessions(1000)
    sessions.begin([1, 2], 0)
    sessions.touch(1, 500)
    assert sessions.silent([1, 2], 1000) == []
    assert sessions.silent([1, 2], 1001) == [2]
    assert sessions.silent([1, 2], 1501) == [1, 2]
    sessions.begin([1, 2], 1501)
    assert sessions.silent([1, 2], 2501) == []


def test_the_next_end_of_a_session_is_known_so_that_a_silent_broker_is_fenced_at_once() -> None:
    sessions = Sessions(1000)
    assert sessions.next_end_ms([1], 0) is None
    sessions.begin([1, 2], 0)
    sessions.touch(1, 400)
    assert sessions.next_end_ms([1, 2], 900) == 101
    assert sessions.silent([1, 2], 900 + 101) == [2]
    # Broker 2 is silent already, so only broker 1 counts.
    assert sessions.next_end_ms([1, 2], 1001) == 400
    assert sessions.next_end_ms([1], 1401) is None


def test_a_new_controller_knows_since_when_the_previous_one_is_silent() -> None:
    """The previous controller may be alive: it has a third of a session left for a heartbeat."""
    sessions = Sessions(900)
    sessions.begin([1, 2], 700, previous=1, previous_heard_ms=300)
    assert sessions.silent([1, 2], 1200) == []
    assert sessions.silent([1, 2], 1201) == [1]
    sessions.begin([1, 2], 5000, previous=1, previous_heard_ms=300)
    assert sessions.silent([1, 2], 5300) == []
    assert sessions.silent([1, 2], 5301) == [1]
    sessions.begin([2], 0, previous=1, previous_heard_ms=0)
    assert not sessions.is_alive(1, 0)


def test_a_broker_that_was_never_heard_has_no_session() -> None:
    sessions = Sessions(1000)
    assert not sessions.is_alive(1, 0)
    assert sessions.silent([1], 0) == [1]


# Registration ---------------------------------------------------------------------------------------------------------


def test_a_broker_is_fenced_until_it_has_caught_up_with_its_own_registration() -> None:
    metadata = Metadata()
    epoch = metadata.register(1)
    assert metadata.image.live_brokers() == []
    behind = metadata.do(Heartbeat(1, epoch, epoch - 1))
    assert (behind.code, behind.is_fenced) == (ErrorCode.NONE, True)
    wanting = metadata.do(Heartbeat(1, epoch, epoch, wants_fence=True))
    assert wanting.is_fenced
    assert not metadata.do(Heartbeat(1, epoch, epoch)).is_fenced
    assert metadata.image.live_brokers() == [1]


def test_a_broker_stays_fenced_until_it_has_read_that_it_was_fenced() -> None:
    """Until then it takes itself for the leader of partitions that another broker leads by now."""
    metadata = Metadata(1, 2)
    metadata.create([1, 2])
    known = metadata.image.offset
    metadata.do(FenceBroker(1))
    metadata.do(AllocateProducerIds(2))
    for offset, is_fenced in ((known, True), (known + 1, False)):
        assert metadata.do(Heartbeat(1, metadata.epochs[1], offset)).is_fenced == is_fenced


def test_a_heartbeat_of_an_earlier_incarnation_is_refused() -> None:
    metadata = Metadata(1)
    old = metadata.epochs[1]
    metadata.register(1, incarnation=1, previous=old)
    assert metadata.do(Heartbeat(1, old, 10**6)).code is ErrorCode.STALE_BROKER_EPOCH
    assert metadata.do(Heartbeat(9, 0, 0)).code is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert metadata.image.live_brokers() == []


def test_a_restart_takes_over_at_once_and_a_copied_node_id_does_not_evict_a_live_broker() -> None:
    metadata = Metadata()
    first = metadata.register(1, log_dirs="a")
    metadata.heartbeat(1)
    before = metadata.image
    refused = metadata.try_to_register(1, incarnation=1, log_dirs="b")
    assert (refused.code, refused.epoch) == (ErrorCode.DUPLICATE_BROKER_REGISTRATION, -1)
    assert metadata.image is before
    # The same registration again, and another incarnation with the same directory.
    assert metadata.try_to_register(1, incarnation=0, log_dirs="b").epoch == first
    assert metadata.register(1, incarnation=2, log_dirs="ac") > first
    assert metadata.image.brokers[1].log_dirs == (b"a" * 16, b"c" * 16)


def test_a_broker_with_another_disk_registers_after_the_session_of_the_old_one() -> None:
    metadata = Metadata()
    metadata.register(1, log_dirs="a")
    # The registered broker is fenced, because it has just started or is shutting down; but it was heard.
    refused = metadata.try_to_register(1, incarnation=1, log_dirs="b", is_heard=True)
    assert refused.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    metadata.heartbeat(1)
    metadata.do(FenceBroker(1))
    assert metadata.register(1, incarnation=1, log_dirs="b") > 0
    # A broker that names no directory counts as the same one.
    metadata.heartbeat(1)
    assert metadata.register(1, incarnation=2) > 0
    metadata.heartbeat(1)
    assert metadata.register(1, incarnation=3, log_dirs="c") > 0


def test_a_broker_that_comes_back_leads_nothing_until_it_is_unfenced() -> None:
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2, 3], [1])
    metadata.register(1, incarnation=1, previous=metadata.epochs[1])
    assert (metadata.partition().leader, metadata.partition().isr) == (2, (2, 3))
    # The other partition has no other replica.
    assert (metadata.partition(1).leader, metadata.partition(1).isr) == (NO_LEADER, (1,))
    metadata.heartbeat(1)
    assert (metadata.partition(1).leader, metadata.partition(1).isr) == (1, (1,))
    assert metadata.partition().leader == 2


def test_a_broker_that_may_have_lost_records_leaves_every_in_sync_set() -> None:
    metadata = Metadata(1, 2)
    metadata.create([1, 2])
    metadata.do(FenceBroker(2))
    assert metadata.partition().isr == (1,)
    metadata.register(1, incarnation=1, previous=-1)
    assert (metadata.partition().leader, metadata.partition().isr) == (NO_LEADER, ())
    metadata.heartbeat(1)
    assert metadata.partition().leader == NO_LEADER


# Fencing --------------------------------------------------------------------------------------------------------------


def test_a_fenced_broker_leads_nothing_and_is_in_sync_only_as_the_last_one() -> None:
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2, 3], [2, 1, 3], [1])
    assert metadata.do(FenceBroker(1))
    assert [metadata.partition(it).leader for it in range(3)] == [2, 2, NO_LEADER]
    assert [metadata.partition(it).isr for it in range(3)] == [(2, 3), (2, 3), (1,)]
    # Only where the leader changes does a leader epoch begin.
    assert [metadata.partition(it).leader_epoch for it in range(3)] == [1, 0, 1]
    assert not metadata.do(FenceBroker(1))
    assert not metadata.do(FenceBroker(9))


def test_a_fenced_broker_is_not_elected() -> None:
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2, 3])
    for broker_id in (2, 1, 3):
        metadata.do(FenceBroker(broker_id))
    assert (metadata.partition().leader, metadata.partition().isr) == (NO_LEADER, (3,))
    metadata.heartbeat(1)
    assert metadata.partition().leader == NO_LEADER
    metadata.heartbeat(3)
    assert metadata.partition().leader == 3


def unclean(metadata: Metadata, *elected: int, **settings: str) -> None:
    node = NodeConfig({name.replace("_", "."): value for name, value in settings.items()})
    assert [it.leader for it in metadata.do(LeadUncleanly(node))] == list(elected)


def test_a_replica_that_is_not_in_sync_leads_only_where_unclean_elections_are_enabled() -> None:
    """KIP-106: they are disabled by default."""
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2], [3, 1])
    metadata.do(FenceBroker(2))
    metadata.do(FenceBroker(1))
    metadata.heartbeat(2)
    unclean(metadata)
    assert (metadata.partition().leader, metadata.partition().isr) == (NO_LEADER, (1,))
    unclean(metadata, 2, unclean_leader_election_enable="true")
    # It alone is in sync now. Broker 1, which has everything, follows when it is back, and truncates its log.
    assert (metadata.partition().leader, metadata.partition().isr) == (2, (2,))
    assert metadata.partition(1).leader == 3
    metadata.heartbeat(1)
    assert metadata.partition().leader == 2
    unclean(metadata, unclean_leader_election_enable="true")


# Shutdown -------------------------------------------------------------------------------------------------------------


def test_a_controlled_shutdown_moves_all_leaderships_first() -> None:
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2, 3], [2, 1, 3], [3, 2])
    state = metadata.heartbeat(1, wants_shut_down=True)
    assert (state.is_fenced, state.may_shut_down) == (False, False)
    assert [metadata.partition(it).leader for it in range(3)] == [2, 2, 3]
    assert [metadata.partition(it).isr for it in range(3)] == [(2, 3), (2, 3), (3, 2)]
    assert [it.in_controlled_shutdown for it in metadata.image.brokers.values()] == [True, False, False]
    state = metadata.heartbeat(1, wants_shut_down=True)
    assert (state.is_fenced, state.may_shut_down) == (True, True)
    # It may ask again. After a restart it is a broker like any other.
    assert metadata.heartbeat(1, wants_shut_down=True).may_shut_down
    metadata.register(1, incarnation=1, previous=metadata.epochs[1])
    metadata.heartbeat(1)
    assert [it.in_controlled_shutdown for it in metadata.image.brokers.values()] == [False] * 3
    assert metadata.image.live_brokers() == [1, 2, 3]


def test_a_broker_that_is_shutting_down_leads_no_new_partition() -> None:
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2, 3])
    metadata.heartbeat(1, wants_shut_down=True)
    (created,) = metadata.do(CreateTopics([NewTopic("late", b"l" * 16, 3, 3)], NodeConfig()))
    assert created.code is ErrorCode.NONE
    late = metadata.image.topics["late"].partitions.values()
    assert all(set(it.isr) == {2, 3} and it.leader != 1 and set(it.replicas) == {1, 2, 3} for it in late)


def test_commands_of_the_controller_itself_have_no_limit_of_records() -> None:
    """A broker with 12,000 replicas, more than a request may have records, is fenced in one batch."""
    metadata = Metadata(1, 2)
    for number in range(2):
        topic = NewTopic(f"t{number}", bytes([number + 1]) * 16, 6_000, 2)
        (created,) = metadata.do(CreateTopics([topic], NodeConfig()))
        assert created.code is ErrorCode.NONE

    def led_by(broker_id: int) -> int:
        topics = metadata.image.topics.values()
        return sum(it.leader == broker_id for topic in topics for it in topic.partitions.values())

    assert led_by(1) == 6_000
    assert metadata.do(FenceBroker(1)) is True
    assert (led_by(1), led_by(2)) == (0, 12_000)
    metadata.register(1, incarnation=1, previous=metadata.epochs[1])
    metadata.heartbeat(1)
    assert metadata.image.live_brokers() == [1, 2]
    changes = [
        IsrChange(topic.topic_id, number, it.leader_epoch, it.partition_epoch, [(2, -1), (1, -1)])
        for topic in metadata.image.topics.values()
        for number, it in topic.partitions.items()
    ]
    altered = metadata.do(alter_moving_partitions(2, metadata.epochs[2], changes))
    assert {it.code for it in altered} == {ErrorCode.NONE}
    metadata.heartbeat(2, wants_shut_down=True)
    assert (led_by(1), led_by(2)) == (12_000, 0)


def test_a_partition_without_another_leader_does_not_delay_a_shutdown() -> None:
    metadata = Metadata(1, 2)
    metadata.create([1])
    assert metadata.heartbeat(1, wants_shut_down=True).may_shut_down
    assert (metadata.partition().leader, metadata.partition().isr) == (NO_LEADER, (1,))


def test_no_leadership_moves_to_a_broker_that_is_shutting_down() -> None:
    metadata = Metadata(1, 2, 3)
    metadata.create([1, 2, 3], [2, 3])
    metadata.heartbeat(2, wants_shut_down=True)
    metadata.heartbeat(1, wants_shut_down=True)
    assert metadata.partition().leader == 3


def test_a_broker_is_removed_once_it_is_stopped_and_has_no_replicas() -> None:
    metadata = Metadata(1, 2)
    metadata.create([1, 2], [2], [2, 1], [1, 2], [1, 2])
    live = metadata.do(UnregisterBroker(1))
    assert (live.code, live.message) == (
        ErrorCode.INVALID_REQUEST,
        "broker 1 is live: stop it first, and wait until it is fenced",
    )
    metadata.do(FenceBroker(1))
    holds = metadata.do(UnregisterBroker(1))
    assert (holds.code, holds.message) == (
        ErrorCode.INVALID_REQUEST,
        "broker 1 has replicas of orders-0, orders2-0, orders3-0 and 1 more: move them away first, with "
        "`minibroker topics reassign --from 1`",
    )
    assert 1 in metadata.image.brokers
    metadata.do(ReassignPartitions([Move(TopicPartition(it, 0), [2]) for it in metadata.image.topics]))
    assert metadata.do(UnregisterBroker(1)).code is ErrorCode.NONE
    assert list(metadata.image.brokers) == [2]
    again = metadata.do(UnregisterBroker(1))
    assert (again.code, again.message) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "broker 1 is not registered; the registered brokers are [2]",
    )


def test_the_state_of_brokers_survives_a_snapshot() -> None:
    for steps in range(1, 4):
        with case(f"after {steps} commands"):
            metadata = Metadata(1, 2, 3)
            metadata.create([1, 2, 3], [2, 3])
            metadata.register(4, log_dirs="ab")
            commands = (FenceBroker(1), Heartbeat(2, metadata.epochs[2], 10**6, wants_shut_down=True), FenceBroker(3))
            for command in commands[:steps]:
                metadata.do(command)
            again = fold_all(Image(), enumerate(records_of(metadata.image)))
            assert (again.brokers, again.topics) == (metadata.image.brokers, metadata.image.topics)
            assert again.partition(ORDERS) == metadata.partition()
