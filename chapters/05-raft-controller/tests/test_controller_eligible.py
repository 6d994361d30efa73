"""Eligible leader replicas (KIP-966): which ones they are, when they lead, and that they lack no committed record."""

from random import Random

from cases import case
from controller_nodes import ORDERS, ORDERS_ID, Metadata

from minibroker.controller.fencing import FenceBroker, LeadUncleanly
from minibroker.controller.reassignment import Move, ReassignPartitions, alter_moving_partitions, elect_moving_leaders
from minibroker.controller.snapshot import records_of
from minibroker.metadata.config_commands import AlterConfigs, ConfigChange, ConfigOperation, ResourceChange
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import NO_LEADER, Image, fold_all
from minibroker.metadata.records import decode_record, encode_record
from minibroker.replication.authority import Election, IsrChange
from minibroker.replication.records import PartitionChangeRecord
from minibroker.wire.codes import ErrorCode

MIN_ISR = "min.insync.replicas"


def cluster(*brokers: int, min_isr: int | None = 2) -> Metadata:
    """Brokers with one partition, of which each has a replica."""
    metadata = Metadata(*brokers)
    metadata.keep_eligible()
    if min_isr is not None:
        configure(metadata, min_isr)
    metadata.create(list(brokers))
    return metadata


def configure(metadata: Metadata, value: int | None, *, topic: str | None = None, broker: str = "") -> None:
    kind, name = (ConfigResource.TOPIC, topic) if topic is not None else (ConfigResource.BROKER, broker)
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = ConfigChange(MIN_ISR, None if value is None else str(value), operation)
    (altered,) = metadata.do(AlterConfigs([ResourceChange(kind, name, [change])], NodeConfig()))
    assert altered.code is ErrorCode.NONE, altered.message


def state(metadata: Metadata) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The leader, the in-sync replicas, and the eligible ones."""
    it = metadata.partition()
    return it.leader, it.isr, it.eligible_leader_replicas


def come_back(metadata: Metadata, broker_id: int, *, is_whole: bool = True) -> None:
    """Let a broker restart and be unfenced; if it is not whole, it may have lost records."""
    previous = metadata.epochs[broker_id] if is_whole else -1
    incarnation = metadata.image.brokers[broker_id].incarnation_id[-1] + 1
    metadata.register(broker_id, incarnation=incarnation, previous=previous)
    metadata.heartbeat(broker_id)


def propose_isr(metadata: Metadata, *members: int) -> None:
    it = metadata.partition()
    change = IsrChange(ORDERS_ID, 0, it.leader_epoch, it.partition_epoch, [(member, -1) for member in members])
    (altered,) = metadata.do(alter_moving_partitions(it.leader, -1, [change]))
    assert altered.code is ErrorCode.NONE, altered.message


def elect(metadata: Metadata, kind: Election = Election.PREFERRED) -> tuple[ErrorCode, str | None]:
    live = metadata.image.live_brokers()
    (elected,) = metadata.do(elect_moving_leaders([ORDERS], live=live, node=NodeConfig(), kind=kind))
    return elected.code, elected.message


# Entering and leaving -------------------------------------------------------------------------------------------------


def test_a_member_that_leaves_a_set_that_is_too_small_is_eligible_and_leads_when_it_is_back() -> None:
    """The story of the module: all three stopped, and the first two came back."""
    metadata = cluster(1, 2, 3)
    metadata.do(FenceBroker(1))
    assert state(metadata) == (2, (2, 3), ())
    metadata.do(FenceBroker(2))
    assert state(metadata) == (3, (3,), (2,))
    metadata.do(FenceBroker(3))
    assert state(metadata) == (NO_LEADER, (), (2, 3))
    # Broker 1 left while the high watermark moved. It may lack records.
    come_back(metadata, 1)
    assert state(metadata) == (NO_LEADER, (), (2, 3))
    come_back(metadata, 2)
    assert state(metadata) == (2, (2,), (3,))
    propose_isr(metadata, 2, 1)
    assert state(metadata) == (2, (2, 1), ())


def test_an_eligible_replica_that_is_live_leads_as_soon_as_the_last_leader_is_fenced() -> None:
    metadata = cluster(1, 2, 3)
    metadata.do(FenceBroker(1))
    propose_isr(metadata, 2)
    assert state(metadata) == (2, (2,), (3,))
    metadata.do(FenceBroker(2))
    assert state(metadata) == (3, (3,), (2,))


def test_the_leader_that_shrinks_its_in_sync_set_makes_members_eligible_and_not_before_it_is_too_small() -> None:
    metadata = cluster(1, 2, 3)
    propose_isr(metadata, 1, 2)
    assert state(metadata) == (1, (1, 2), ())
    propose_isr(metadata, 1)
    assert state(metadata) == (1, (1,), (2,))
    propose_isr(metadata, 1, 2)
    assert state(metadata) == (1, (1, 2), ())


def test_a_controlled_shutdown_of_all_brokers_keeps_those_that_have_everything() -> None:
    metadata = cluster(1, 2, 3)
    for broker_id in (1, 2, 3):
        for _ in range(2):
            metadata.heartbeat(broker_id, wants_shut_down=True)
    assert state(metadata) == (NO_LEADER, (), (2, 3))


def test_a_replica_that_may_have_lost_records_leaves_both_lists() -> None:
    for broker_id, expected in ((2, (NO_LEADER, (), (3,))), (3, (NO_LEADER, (), (2,)))):
        with case(broker_id):
            metadata = cluster(1, 2, 3)
            for it in (1, 2, 3):
                metadata.do(FenceBroker(it))
            come_back(metadata, broker_id, is_whole=False)
            assert state(metadata) == expected
    # An eligible replica leads at once if the only leader comes back without its records.
    metadata = cluster(1, 2)
    propose_isr(metadata, 1)
    assert state(metadata) == (1, (1,), (2,))
    come_back(metadata, 1, is_whole=False)
    assert state(metadata) == (2, (2,), ())


def test_the_last_leader_is_remembered_while_there_is_none() -> None:
    metadata = cluster(1, 2, 3)
    for it in (1, 2, 3):
        metadata.do(FenceBroker(it))
    assert metadata.partition().last_known_elr == (3,)
    for it in (2, 3):
        come_back(metadata, it, is_whole=False)
    # Nothing is certain any more, so there is no leader, although all have come back.
    assert state(metadata) == (NO_LEADER, (), ())
    assert metadata.partition().last_known_elr == (3,)
    code, message = elect(metadata)
    assert code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    assert elect(metadata, Election.UNCLEAN)[0] is ErrorCode.NONE
    assert metadata.partition().last_known_elr == ()


def test_after_an_unclean_election_no_other_replica_is_eligible() -> None:
    metadata = cluster(1, 2, 3)
    for it in (1, 2, 3):
        metadata.do(FenceBroker(it))
    come_back(metadata, 1)
    code, message = elect(metadata)
    assert code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert message is not None
    assert "none of the in-sync replicas [] and of the eligible replicas [2, 3] is alive" in message
    assert elect(metadata, Election.UNCLEAN)[0] is ErrorCode.NONE
    assert state(metadata) == (1, (1,), ())


def test_an_eligible_replica_leads_before_an_unclean_election_is_tried() -> None:
    metadata = cluster(1, 2, 3)
    for it in (1, 2, 3):
        metadata.do(FenceBroker(it))
    come_back(metadata, 1)
    come_back(metadata, 3)
    assert state(metadata) == (3, (3,), (2,))
    node = NodeConfig({"unclean.leader.election.enable": "true"})
    assert metadata.do(LeadUncleanly(node)) == []


# How many must be in sync ---------------------------------------------------------------------------------------------


def test_the_number_comes_from_the_metadata_and_the_smallest_that_a_leader_may_use_counts() -> None:
    def after_fencing(metadata: Metadata) -> tuple[int, ...]:
        for it in (1, 2):
            metadata.do(FenceBroker(it))
        return metadata.partition().eligible_leader_replicas

    assert after_fencing(cluster(1, 2, 3)) == (2,)
    # No node's file counts: it may differ from node to node.
    assert after_fencing(cluster(1, 2, 3, min_isr=None)) == ()
    metadata = cluster(1, 2, 3)
    configure(metadata, 1, broker="3")
    assert after_fencing(metadata) == ()
    metadata = cluster(1, 2, 3)
    configure(metadata, 3, topic="orders")
    assert after_fencing(metadata) == (1, 2)
    # A partition with fewer replicas demands all of them.
    metadata = cluster(1, 2, min_isr=3)
    metadata.do(FenceBroker(1))
    assert state(metadata) == (2, (2,), (1,))


def test_a_smaller_number_ends_the_eligibility_of_others_if_the_leader_writes_again() -> None:
    metadata = cluster(1, 2, 3)
    propose_isr(metadata, 1)
    propose_isr(metadata, 1, 2)
    propose_isr(metadata, 1)
    assert state(metadata) == (1, (1,), (2,))
    configure(metadata, 3)
    assert state(metadata) == (1, (1,), (2,))
    configure(metadata, 1, topic="orders")
    assert state(metadata) == (1, (1,), ())
    # Without a leader no record is acknowledged, whatever the number.
    metadata = cluster(1, 2, 3)
    for it in (1, 2, 3):
        metadata.do(FenceBroker(it))
    configure(metadata, 1)
    assert state(metadata) == (NO_LEADER, (), (2, 3))


def test_a_leader_that_has_not_read_a_larger_number_cannot_make_a_replica_eligible() -> None:
    """By the smaller number it goes on alone after the removal, and acknowledges records that the replica lacks."""
    metadata = cluster(1, 2, min_isr=1)
    known = metadata.partition()
    configure(metadata, 2, topic="orders")
    for partition, code in ((known, ErrorCode.INVALID_UPDATE_VERSION), (metadata.partition(), ErrorCode.NONE)):
        change = IsrChange(ORDERS_ID, 0, partition.leader_epoch, partition.partition_epoch, [(1, -1)])
        (altered,) = metadata.do(alter_moving_partitions(1, -1, [change]))
        assert altered.code is code, altered.message
    assert state(metadata) == (1, (1,), (2,))
    # If the value does not grow, nothing is written.
    before = metadata.partition()
    configure(metadata, 3, topic="orders")
    assert metadata.partition() == before


# Other changes --------------------------------------------------------------------------------------------------------


def test_a_replica_that_is_moved_away_is_not_eligible() -> None:
    metadata = cluster(1, 2, 3)
    propose_isr(metadata, 1, 3)
    propose_isr(metadata, 1)
    assert state(metadata) == (1, (1,), (3,))
    metadata.do(ReassignPartitions([Move(ORDERS, [1])]))
    assert metadata.partition().replicas == (1,)
    assert state(metadata) == (1, (1,), ())


def test_eligible_replicas_survive_the_log_and_a_snapshot() -> None:
    metadata = cluster(1, 2, 3)
    for it in (1, 2, 3):
        metadata.do(FenceBroker(it))
    records = [decode_record(encode_record(it)) for it in records_of(metadata.image)]
    assert fold_all(Image(), enumerate(records)).topics == metadata.image.topics


def test_a_change_by_an_older_program_ends_all_eligibility() -> None:
    """It may have let the high watermark move without the eligible replicas, which it does not know."""
    metadata = cluster(1, 2, 3)
    propose_isr(metadata, 1)
    metadata.write([PartitionChangeRecord(partition_id=0, topic_id=ORDERS_ID, isr=[1, 3])])
    assert state(metadata) == (1, (1, 3), ())


# A model --------------------------------------------------------------------------------------------------------------


class Model:
    """Three replicas of one partition, as lists of numbers, and a controller that always answers.

    `committed` are the records below the high watermark. At most one replica at a time has lost records and is not in
    sync again: a promise to two replicas survives no more than that.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.metadata = cluster(1, 2, 3)
        self.logs: dict[int, list[int]] = {1: [], 2: [], 3: []}
        self.committed: list[int] = []
        self.up = {1, 2, 3}
        self.weak: int | None = None
        self.is_whole = dict.fromkeys(self.logs, True)
        self.number = 0
        self.elected: set[int] = set()

    def step(self) -> None:
        action = self.chance.choice(
            (
                *(self.append, self.append, self.fetch, self.fetch, self.shrink, self.expand),
                *(self.kill, self.fence, self.stop, self.cut_power, self.start, self.start),
            )
        )
        before = self.metadata.partition()
        action(self.chance.choice((1, 2, 3)))
        self.advance()
        self.check(before.eligible_leader_replicas)

    @property
    def leader(self) -> int | None:
        it = self.metadata.partition().leader
        return it if it in self.up else None

    def append(self, _broker_id: int) -> None:
        if self.leader is not None:
            self.number += 1
            self.logs[self.leader].append(self.number)

    def fetch(self, broker_id: int) -> None:
        if self.leader is not None and broker_id in self.up:
            self.logs[broker_id] = list(self.logs[self.leader])

    def shrink(self, broker_id: int) -> None:
        isr = [it for it in self.metadata.partition().isr if it != broker_id]
        if self.leader in isr:
            propose_isr(self.metadata, *isr)

    def expand(self, broker_id: int) -> None:
        isr = self.metadata.partition().isr
        is_live = broker_id in self.up and not self.metadata.image.brokers[broker_id].is_fenced
        if self.leader is not None and is_live and broker_id not in isr:
            self.fetch(broker_id)
            if all(it in self.metadata.image.live_brokers() for it in isr):
                propose_isr(self.metadata, *isr, broker_id)
            self.weak = None if self.weak == broker_id else self.weak

    def advance(self) -> None:
        isr = self.metadata.partition().isr
        if self.leader is not None and len(isr) >= 2:
            end = min(len(self.logs[it]) for it in isr)
            if end > len(self.committed):
                self.committed = self.logs[self.leader][:end]

    def kill(self, broker_id: int) -> None:
        self.up.discard(broker_id)

    def fence(self, broker_id: int) -> None:
        if broker_id not in self.up:
            self.metadata.do(FenceBroker(broker_id))

    def stop(self, broker_id: int) -> None:
        for _ in range(3):
            if broker_id in self.up:
                self.metadata.heartbeat(broker_id, wants_shut_down=True)
        self.up.discard(broker_id)

    def cut_power(self, broker_id: int) -> None:
        if self.weak in (None, broker_id) and broker_id in self.up:
            self.up.discard(broker_id)
            self.weak, self.is_whole[broker_id] = broker_id, False
            kept = self.chance.randint(0, len(self.logs[broker_id]))
            del self.logs[broker_id][kept:]

    def start(self, broker_id: int) -> None:
        if broker_id not in self.up:
            self.up.add(broker_id)
            come_back(self.metadata, broker_id, is_whole=self.is_whole[broker_id])
            self.is_whole[broker_id] = True

    def check(self, were_eligible: tuple[int, ...]) -> None:
        it, live = self.metadata.partition(), set(self.metadata.image.live_brokers())
        if it.leader in were_eligible:
            self.elected.add(it.leader)
        assert not set(it.isr) & set(it.eligible_leader_replicas), it
        for broker_id in (*it.eligible_leader_replicas, *([self.leader] if self.leader is not None else [])):
            if self.is_whole[broker_id]:
                held = self.logs[broker_id][: len(self.committed)]
                assert held == self.committed, f"{broker_id} lacks committed records: {it}"
        if it.leader == NO_LEADER:
            may_lead = set(it.isr or it.eligible_leader_replicas)
            assert not may_lead & live, f"{may_lead & live} could lead: {it}"


def test_an_eligible_replica_has_every_committed_record_and_leads_if_it_is_needed() -> None:
    elected: set[int] = set()
    for seed in range(100):
        with case(f"seed {seed}"):
            model = Model(Random(seed))
            for _ in range(60):
                model.step()
            elected |= model.elected
    assert elected == {1, 2, 3}, "the model reaches elections of eligible replicas"
