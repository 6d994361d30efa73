"""Claims that the exercises of chapter 05 are tested by: what is made and what is decided, and who leads instead."""

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from raft_nodes import directory_id
from test_raft_exercises import elect, fetch, leader, voter

from minibroker.controller.deciding import Controller
from minibroker.controller.lifecycle import without
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
    """Raise a feature by one level, or only say at which it is."""

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
    """The controller of three voters, which has decided something already."""
    raft, done = raft or leader(), list[Proposal[str]]()
    controller = Controller(raft, Image(), clock=lambda: 0, done=done.append)
    decide(raft, controller)
    decide(raft, controller)
    assert controller.is_active
    return raft, controller, done


def decide(raft: Raft, controller: Controller) -> None:
    """A second of the three has everything."""
    fetch(raft, 2, raft.log.log_end_offset)
    controller.catch_up()


def test_what_is_made_is_nobodys_business_until_it_is_decided() -> None:
    raft, controller, done = active()
    proposal = controller.propose(Raise("a"))
    assert not proposal.is_done, "only the leader has it, and the proposal is done"
    assert "a" not in controller.image.features, "only the leader has it, and it is in the image"
    decide(raft, controller)
    assert done, "a majority has it, and `done` was not called"
    assert (proposal.result, controller.image.features.get("a")) == ("level 1", 1)
    assert done == [proposal], "`done` was not called with this proposal alone, once"


def test_the_next_command_is_held_against_what_is_made() -> None:
    raft, controller, done = active()
    first, second = controller.propose(Raise("a")), controller.propose(Raise("a"))
    decide(raft, controller)
    assert (first.result, second.result) == ("level 1", "level 2"), "the second did not know of the first"
    assert done == [first, second], "they are not completed in the order in which they were made"


def test_an_answer_that_rests_on_what_is_made_waits_for_it() -> None:
    raft, controller, done = active()
    controller.propose(Raise("a"))
    end_offset = raft.log.log_end_offset
    asked = controller.propose(Raise("a", by=0))
    assert raft.log.log_end_offset == end_offset, "a command that changes nothing wrote something"
    assert not asked.is_done, "it was answered with what is only made"
    decide(raft, controller)
    assert asked.result == "level 1"
    assert done[1:] == [asked], "`done` was not called with it"
    at_once = controller.propose(Raise("a", by=0))
    assert at_once.is_done, "everything is decided, and it waits"
    assert at_once.result == "level 1"


def test_what_is_decided_is_completed_and_what_comes_after_waits() -> None:
    raft, controller, done = active()
    first = controller.propose(Raise("a"))
    end_offset = raft.log.log_end_offset
    second = controller.propose(Raise("a"))
    fetch(raft, 2, end_offset)
    controller.catch_up()
    assert (first.is_done, second.is_done) == (True, False), "a majority has the first, and not the second"
    assert done == [first]


def test_who_votes_alone_has_decided_when_it_has_proposed() -> None:
    raft = voter(of=1).raft
    raft.tick(0)
    controller = Controller(raft, Image(), clock=lambda: 0)
    controller.catch_up()
    proposal = controller.propose(Raise("a"))
    assert proposal.is_done, "a majority of one has it on its disk, and nothing else will happen to tell it"
    assert proposal.result == "level 1"
    assert controller.image.features.get("a") == 1, "it is decided, and not in the image: nobody has caught up"


def test_a_disk_that_refuses_is_an_answer() -> None:
    node = voter()
    elect(node.raft)
    _raft, controller, _done = active(node.raft)
    node.files.fsync_error = OSError(5, "input/output error")
    proposal = controller.propose(Raise("a"))
    assert proposal.is_done, "it could not be written, and whoever proposed it waits"
    assert proposal.result.startswith("KAFKA_STORAGE_ERROR: ")


def test_a_listener_proposes_nothing() -> None:
    raft, controller, _done = active()
    controller.propose(Raise("a"))

    def listener(_old: Image, _new: Image) -> None:
        controller.propose(Raise("b"))

    controller.subscribe(listener)
    with pytest.raises(AssertionError):
        decide(raft, controller)


def test_who_is_deposed_cannot_tell_what_became_of_it() -> None:
    raft, controller, done = active()
    proposal = controller.propose(Raise("a"))
    raft.on_begin(BeginQuorumEpoch(raft.epoch + 1, 3, VoterKey(1, directory_id(1))), 20_000)
    controller.catch_up()
    assert not controller.is_active, "another one leads, and it still decides"
    assert proposal.is_done, "another one decides, and whoever proposed it waits"
    assert proposal.result == "NOT_CONTROLLER: node 3 decides"
    assert done == [proposal], "`done` was not called with the proposal, once"
    assert "a" not in controller.image.features, "what was only made is in the image"
    controller.catch_up()
    assert done == [proposal], "it was refused twice"


def test_who_does_not_lead_refuses_at_once() -> None:
    raft = voter().raft
    controller = Controller(raft, Image(), clock=lambda: 0)
    controller.catch_up()
    proposal = controller.propose(Raise("a"))
    assert proposal.is_done, "it does not lead, and lets whoever proposed it wait"
    assert proposal.result.startswith("NOT_CONTROLLER: nobody decides")
    assert raft.log.log_end_offset == 0, "it does not lead, and wrote"


# A broker is gone (invariants 28 and 37)

UNCHANGED = (None, NO_LEADER_CHANGE)


def gone(number: int, *, isr: tuple[int, ...], leads: int, live: Collection[int]) -> PartitionChangeRecord | None:
    partition = PartitionImage(replicas=(2, 3, 1), isr=isr, leader=leads, leader_epoch=0, partition_epoch=0)
    return without(TopicImage("orders", bytes(16), {0: partition}), 0, partition, gone=number, live=live)


def changed(change: PartitionChangeRecord | None) -> tuple[list[int] | None, int]:
    """The in-sync set and the leader that a record names."""
    return (change.isr, change.leader) if change is not None else UNCHANGED


@pytest.mark.parametrize(
    ("isr", "live", "next_leader"),
    [((1, 2, 3), {1, 3}, 3), ((1, 2), {1, 3}, 1), ((1, 2, 3), {1, 2}, 1)],
    ids=["the first in the order of the replicas", "only one in sync", "only one that lives"],
)
def test_the_first_replica_that_is_in_sync_and_live_leads(
    isr: tuple[int, ...], live: Collection[int], next_leader: int
) -> None:
    in_sync, leader_id = changed(gone(2, isr=isr, leads=2, live=live))
    case = f"broker 2 of replicas (2, 3, 1) is gone, in sync {isr}, live {live}"
    assert leader_id == next_leader, f"{case}: {next_leader} leads, not {leader_id}"
    assert in_sync == [it for it in isr if it != 2], f"{case}: in sync is named as {in_sync}"


def test_a_change_is_of_its_partition_and_of_nothing_else() -> None:
    change = gone(2, isr=(1, 2, 3), leads=2, live={1, 3})
    assert change == PartitionChangeRecord(partition_id=0, topic_id=bytes(16), isr=[1, 3], leader=3)


def test_a_follower_that_is_gone_begins_no_epoch() -> None:
    in_sync, leader_id = changed(gone(3, isr=(2, 3, 1), leads=2, live={1, 2}))
    assert leader_id == NO_LEADER_CHANGE, f"broker 2 leads on, and the record names leader {leader_id}: a new epoch"
    assert in_sync == [2, 1], f"broker 3 is gone, and in sync is named as {in_sync}"


def test_the_last_one_in_sync_stays_and_nobody_leads() -> None:
    # Who is gone may have been live a moment ago.
    in_sync, leader_id = changed(gone(2, isr=(2,), leads=2, live={1, 2, 3}))
    assert leader_id == NO_LEADER, f"broker 2 is gone, nobody else is in sync, and leader {leader_id} is named"
    assert in_sync is None, f"the in-sync set stays as it is, and is named as {in_sync}"


def test_where_nobody_in_sync_is_live_nobody_leads() -> None:
    in_sync, leader_id = changed(gone(2, isr=(2, 3), leads=2, live={1}))
    assert leader_id == NO_LEADER, f"only broker 1 lives, and is not in sync; leader {leader_id} is named"
    assert in_sync == [3], f"broker 2 is gone, and in sync is named as {in_sync}"


def test_where_it_mattered_nothing_changes_nothing() -> None:
    change = gone(3, isr=(2, 1), leads=2, live={1, 2})
    assert change is None, f"broker 3 did not lead and was not in sync, and a record was made: {changed(change)}"
