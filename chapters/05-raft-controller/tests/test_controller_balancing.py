"""Preferred leaders are elected again by the controller itself."""

from controller_nodes import Metadata, Trio

from minibroker.controller.balancing import ELECTIONS_MAX, ElectPreferredLeaders, LeaderBalance, led_by_others
from minibroker.controller.fencing import FenceBroker
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.replication.authority import AlterPartitions, IsrChange


def leaders(metadata: Metadata) -> list[int]:
    return [it.leader for topic in metadata.image.topics.values() for it in topic.partitions.values()]


def join(metadata: Metadata, broker_id: int) -> None:
    """Let a broker catch up: each leader adds it to its in-sync set."""
    for topic in metadata.image.topics.values():
        for number, it in topic.partitions.items():
            isr = tuple((member, metadata.epochs[member]) for member in (*it.isr, broker_id))
            change = IsrChange(topic.topic_id, number, it.leader_epoch, it.partition_epoch, isr)
            metadata.do(AlterPartitions(it.leader, metadata.epochs[it.leader], [change]))


def after_a_restart(partitions: int) -> Metadata:
    """Broker 1, the preferred leader of all partitions, was stopped and is in sync again; the other brokers lead."""
    metadata = Metadata(1, 2, 3)
    metadata.create(*[[1, 2, 3]] * partitions)
    epoch = metadata.epochs[1]
    metadata.do(FenceBroker(1))
    assert leaders(metadata) == [2] * partitions
    metadata.register(1, incarnation=1, previous=epoch)
    metadata.heartbeat(1)
    return metadata


def test_a_preferred_leader_leads_again_when_it_is_in_sync_and_not_before() -> None:
    metadata = after_a_restart(2)
    assert metadata.do(ElectPreferredLeaders()) == 0
    assert leaders(metadata) == [2, 2]
    join(metadata, 1)
    epochs = [metadata.partition(number).leader_epoch for number in (0, 1)]
    assert metadata.do(ElectPreferredLeaders()) == 2
    assert leaders(metadata) == [1, 1]
    assert [metadata.partition(number).leader_epoch for number in (0, 1)] == [it + 1 for it in epochs]
    assert [metadata.partition(number).isr for number in (0, 1)] == [(2, 3, 1)] * 2
    # There is nothing left to do.
    offset = metadata.image.offset
    assert metadata.do(ElectPreferredLeaders()) == 0
    assert metadata.image.offset == offset


def test_a_fenced_or_stopping_broker_is_not_elected_as_preferred_leader() -> None:
    metadata = after_a_restart(1)
    join(metadata, 1)
    assert list(led_by_others(metadata.image))
    # It is not in the in-sync set, and would not be elected even if it were.
    metadata.heartbeat(1, wants_shut_down=True)
    assert not list(led_by_others(metadata.image))
    metadata = after_a_restart(1)
    join(metadata, 1)
    metadata.do(FenceBroker(1))
    assert not list(led_by_others(metadata.image))


def test_preferred_leaders_are_elected_at_intervals() -> None:
    metadata = after_a_restart(1)
    balance = LeaderBalance(1000)
    balance.begin(500)
    join(metadata, 1)
    assert balance.tick(metadata.image, 1499) is None
    assert balance.tick(metadata.image, 1500) == ElectPreferredLeaders()
    assert balance.tick(metadata.image, 2499) is None
    metadata.do(ElectPreferredLeaders())
    # Nothing is proposed if all preferred leaders lead.
    assert balance.tick(metadata.image, 2500) is None
    never = LeaderBalance(None)
    never.begin(0)
    assert never.tick(after_a_restart(1).image, 2**40) is None


def test_at_most_a_thousand_leaders_are_elected_at_once() -> None:
    metadata = after_a_restart(ELECTIONS_MAX + 5)
    join(metadata, 1)
    balance = LeaderBalance(1000)
    balance.begin(0)
    for elected in (ELECTIONS_MAX, 5):
        command = balance.tick(metadata.image, 1000)
        assert command is not None
        assert metadata.do(command) == elected
    assert balance.tick(metadata.image, 1000) is None
    assert leaders(metadata) == [1] * (ELECTIONS_MAX + 5)


def test_a_node_that_is_not_the_controller_elects_no_leader() -> None:
    trio = Trio()
    trio.elect(1)
    trio.pump()
    topic = NewTopic("orders", bytes([1] * 16))
    assert trio.controllers[2].propose(ElectPreferredLeaders()).result == 0
    assert trio.controllers[2].propose(CreateTopics([topic], NodeConfig())).result[0].name == "orders"
