"""Claims for the exercises of chapter 05: uncommitted and committed decisions, and the next leader of a partition."""

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from raft_nodes import directory_id
from test_raft_exercises import elect, fetch, leader, voter

from minibroker.controller.deciding import Controller
from minibroker.controller.fencing import without
from minibroker.metadata.authority import Proposal
from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from minibroker.metadata.records import FeatureLevelRecord
from minibroker.raft.messages import BeginQuorumEpoch
from minibroker.raft.node import Raft
from minibroker.raft.voters import VoterKey
from minibroker.replication.records import NO_LEADER_CHANGE, PartitionChangeRecord
from minibroker.wire.codes import ErrorCode


@dataclass(frozen=True)
class Raise(Command[str]):
    """Raise a feature by one level, or only return its level."""

    name: str
    by: int = 1

    def run(self, image: Image, records: Records) -> str:
        level = image.features.get(self.name, 0) + self.by
        if self.by:
            records.add([FeatureLevelRecord(name=self.name, feature_level=level)])
        return f"level {level}"

    def refuse(self, code: ErrorCode, message: str) -> str:
        return f"{code.name}: {message}"


def active(raft: Raft | None = None) -> tuple[Raft, Controller, list[Proposal[str]]]:
    """The controller of three voters, whose epoch has a committed record."""
    raft, done = raft or leader(), list[Proposal[str]]()
    controller = Controller(raft, Image(), clock=lambda: 0, done=done.append)
    commit(raft, controller)
    commit(raft, controller)
    assert controller.is_active
    return raft, controller, done


def commit(raft: Raft, controller: Controller) -> None:
    """A second of the three voters has everything."""
    fetch(raft, 2, raft.log.log_end_offset)
    controller.catch_up()


def test_an_uncommitted_record_is_not_in_the_image() -> None:
    raft, controller, done = active()
    proposal = controller.propose(Raise("a"))
    assert not proposal.is_done, "only the leader has the record, and the proposal is done"
    assert "a" not in controller.image.features, "only the leader has the record, and it is in the image"
    commit(raft, controller)
    assert done, "a majority has the record, and `done` was not called"
    assert (proposal.result, controller.image.features.get("a")) == ("level 1", 1)
    assert done == [proposal], "`done` was not called with this proposal alone, once"


def test_the_next_command_is_checked_against_uncommitted_records() -> None:
    raft, controller, done = active()
    first, second = controller.propose(Raise("a")), controller.propose(Raise("a"))
    commit(raft, controller)
    assert (first.result, second.result) == ("level 1", "level 2"), (
        "the second command was not checked against the record of the first"
    )
    assert done == [first, second], "the proposals are not completed in the order of the log"


def test_a_result_that_rests_on_uncommitted_records_waits_for_the_commit() -> None:
    raft, controller, done = active()
    controller.propose(Raise("a"))
    end_offset = raft.log.log_end_offset
    asked = controller.propose(Raise("a", by=0))
    assert raft.log.log_end_offset == end_offset, "a command without records wrote something"
    assert not asked.is_done, "it was answered with an uncommitted record"
    commit(raft, controller)
    assert asked.result == "level 1"
    assert done[1:] == [asked], "`done` was not called with it"
    at_once = controller.propose(Raise("a", by=0))
    assert at_once.is_done, "everything is committed, and it waits"
    assert at_once.result == "level 1"


def test_committed_proposals_are_completed_and_later_ones_wait() -> None:
    raft, controller, done = active()
    first = controller.propose(Raise("a"))
    end_offset = raft.log.log_end_offset
    second = controller.propose(Raise("a"))
    fetch(raft, 2, end_offset)
    controller.catch_up()
    assert (first.is_done, second.is_done) == (True, False), "a majority has the first, and not the second"
    assert done == [first]


def test_the_proposal_of_an_only_voter_is_committed_at_once() -> None:
    raft = voter(of=1).raft
    raft.tick(0)
    controller = Controller(raft, Image(), clock=lambda: 0)
    controller.catch_up()
    proposal = controller.propose(Raise("a"))
    assert proposal.is_done, (
        "a majority of one has the record on its disk, and no later event would complete the proposal"
    )
    assert proposal.result == "level 1"
    assert controller.image.features.get("a") == 1, (
        "the record is committed, and not in the image: `catch_up` was not called"
    )


def test_a_failed_write_is_answered_with_a_storage_error() -> None:
    node = voter()
    elect(node.raft)
    _raft, controller, _done = active(node.raft)
    node.files.fsync_error = OSError(5, "input/output error")
    proposal = controller.propose(Raise("a"))
    assert proposal.is_done, "the record could not be written, and the caller waits"
    assert proposal.result.startswith("KAFKA_STORAGE_ERROR: ")


def test_a_listener_must_not_propose() -> None:
    raft, controller, _done = active()
    controller.propose(Raise("a"))

    def listener(_old: Image, _new: Image) -> None:
        controller.propose(Raise("b"))

    controller.subscribe(listener)
    with pytest.raises(AssertionError):
        commit(raft, controller)


def test_a_deposed_controller_refuses_its_uncommitted_proposals() -> None:
    raft, controller, done = active()
    proposal = controller.propose(Raise("a"))
    raft.on_begin(BeginQuorumEpoch(raft.epoch + 1, 3, VoterKey(1, directory_id(1))), 20_000)
    controller.catch_up()
    assert not controller.is_active, "another node leads, and this one is still active"
    assert proposal.is_done, "the controller was deposed, and the caller waits"
    assert proposal.result == "NOT_CONTROLLER: the controller is node 3"
    assert done == [proposal], "`done` was not called with the proposal, once"
    assert "a" not in controller.image.features, "an uncommitted record is in the image"
    controller.catch_up()
    assert done == [proposal], "the proposal was refused twice"


def test_a_node_that_does_not_lead_refuses_at_once() -> None:
    raft = voter().raft
    controller = Controller(raft, Image(), clock=lambda: 0)
    controller.catch_up()
    proposal = controller.propose(Raise("a"))
    assert proposal.is_done, "the node does not lead, and lets the caller wait"
    assert proposal.result.startswith("NOT_CONTROLLER: there is no controller")
    assert raft.log.log_end_offset == 0, "the node does not lead, and wrote a record"


# A broker is gone (invariants 28 and 37)

UNCHANGED = (None, NO_LEADER_CHANGE)


def gone(number: int, *, isr: tuple[int, ...], leads: int, live: Collection[int]) -> PartitionChangeRecord | None:
    partition = PartitionImage(replicas=(2, 3, 1), isr=isr, leader=leads, leader_epoch=0, partition_epoch=0)
    return without(TopicImage("orders", bytes(16), {0: partition}), 0, partition, gone=number, live=live)


def changed(change: PartitionChangeRecord | None) -> tuple[list[int] | None, int]:
    """The in-sync set and the leader that a record names."""
    return (change.isr, change.leader) if change is not None else UNCHANGED


def test_the_first_replica_that_is_in_sync_and_live_leads() -> None:
    cases: list[tuple[tuple[int, ...], set[int], int]] = [
        ((1, 2, 3), {1, 3}, 3),  # the first in the order of the replicas
        ((1, 2), {1, 3}, 1),  # the only one in sync
        ((1, 2, 3), {1, 2}, 1),  # the only one that is live
    ]
    for isr, live, next_leader in cases:
        in_sync, leader_id = changed(gone(2, isr=isr, leads=2, live=live))
        case = f"broker 2 of replicas (2, 3, 1) is gone, in sync {isr}, live {live}"
        assert leader_id == next_leader, f"{case}: {next_leader} leads, not {leader_id}"
        assert in_sync == [it for it in isr if it != 2], f"{case}: the record has the in-sync set {in_sync}"


def test_the_record_names_its_partition_and_only_what_changes() -> None:
    change = gone(2, isr=(1, 2, 3), leads=2, live={1, 3})
    assert change == PartitionChangeRecord(partition_id=0, topic_id=bytes(16), isr=[1, 3], leader=3)


def test_a_follower_that_is_gone_begins_no_epoch() -> None:
    in_sync, leader_id = changed(gone(3, isr=(2, 3, 1), leads=2, live={1, 2}))
    assert leader_id == NO_LEADER_CHANGE, (
        f"broker 2 still leads, and the record names leader {leader_id}: that begins an epoch"
    )
    assert in_sync == [2, 1], f"broker 3 is gone, and the record has the in-sync set {in_sync}"


def test_the_last_in_sync_replica_stays_and_there_is_no_leader() -> None:
    # The broker that is gone may still be among the live ones.
    in_sync, leader_id = changed(gone(2, isr=(2,), leads=2, live={1, 2, 3}))
    assert leader_id == NO_LEADER, (
        f"broker 2 is gone, no other replica is in sync, and the record names leader {leader_id}"
    )
    assert in_sync is None, f"the in-sync set does not change, and the record has {in_sync}"


def test_there_is_no_leader_if_no_in_sync_replica_is_live() -> None:
    in_sync, leader_id = changed(gone(2, isr=(2, 3), leads=2, live={1}))
    assert leader_id == NO_LEADER, f"only broker 1 is live, and it is not in sync; the record names leader {leader_id}"
    assert in_sync == [3], f"broker 2 is gone, and the record has the in-sync set {in_sync}"


def test_a_broker_that_neither_led_nor_was_in_sync_changes_nothing() -> None:
    change = gone(3, isr=(2, 1), leads=2, live={1, 2})
    assert change is None, f"broker 3 neither led nor was in sync, and there is a record: {changed(change)}"
