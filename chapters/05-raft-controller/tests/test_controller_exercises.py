"""Claims that the exercises of chapter 05 are tested by: what is made and what is decided, and who leads instead."""

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from raft_nodes import directory_id
from test_raft_exercises import fetch, leader, voter

from minibroker.controller.deciding import Controller
from minibroker.controller.lifecycle import without
from minibroker.metadata.authority import Proposal
from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from minibroker.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from minibroker.raft.messages import BeginQuorumEpoch
from minibroker.raft.node import Raft
from minibroker.raft.voters import VoterKey
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


def active() -> tuple[Raft, Controller, list[Proposal[str]]]:
    """The controller of three voters, which has decided something already."""
    raft, done = leader(), list[Proposal[str]]()
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
    assert not proposal.is_done
    assert "a" not in controller.image.features
    decide(raft, controller)
    assert proposal.result == "level 1"
    assert controller.image.features["a"] == 1
    assert done == [proposal]


def test_the_next_command_is_held_against_what_is_made() -> None:
    raft, controller, done = active()
    first, second = controller.propose(Raise("a")), controller.propose(Raise("a"))
    decide(raft, controller)
    assert (first.result, second.result) == ("level 1", "level 2")
    assert done == [first, second]


def test_an_answer_that_rests_on_what_is_made_waits_for_it() -> None:
    raft, controller, _done = active()
    controller.propose(Raise("a"))
    end_offset = raft.log.log_end_offset
    asked = controller.propose(Raise("a", by=0))
    assert raft.log.log_end_offset == end_offset
    assert not asked.is_done
    decide(raft, controller)
    assert asked.result == "level 1"
    assert controller.propose(Raise("a", by=0)).result == "level 1"


def test_who_is_deposed_cannot_tell_what_became_of_it() -> None:
    raft, controller, done = active()
    proposal = controller.propose(Raise("a"))
    raft.on_begin(BeginQuorumEpoch(raft.epoch + 1, 3, VoterKey(1, directory_id(1))), 20_000)
    controller.catch_up()
    assert not controller.is_active
    assert proposal.result == "NOT_CONTROLLER: node 3 decides"
    assert done == [proposal]
    assert "a" not in controller.image.features


def test_who_does_not_lead_refuses_at_once() -> None:
    raft = voter().raft
    controller = Controller(raft, Image(), clock=lambda: 0)
    controller.catch_up()
    assert controller.propose(Raise("a")).result.startswith("NOT_CONTROLLER: nobody decides")
    assert raft.log.log_end_offset == 0


# A broker is gone (invariants 28 and 37)


def gone(number: int, *, isr: tuple[int, ...], leads: int, live: Collection[int]) -> PartitionChangeRecord | None:
    partition = PartitionImage(replicas=(2, 3, 1), isr=isr, leader=leads, leader_epoch=0, partition_epoch=0)
    return without(TopicImage("orders", bytes(16), {0: partition}), 0, partition, gone=number, live=live)


@pytest.mark.parametrize(
    ("isr", "live", "next_leader"),
    [((1, 2, 3), {1, 3}, 3), ((1, 2), {1, 3}, 1), ((1, 2, 3), {1, 2}, 1)],
    ids=["the first in the order of the replicas", "only one in sync", "only one that lives"],
)
def test_the_first_replica_that_is_in_sync_and_live_leads(
    isr: tuple[int, ...], live: Collection[int], next_leader: int
) -> None:
    change = gone(2, isr=isr, leads=2, live=live)
    assert change is not None
    assert change.leader == next_leader
    assert change.isr == [it for it in isr if it != 2]


def test_a_follower_that_is_gone_begins_no_epoch() -> None:
    change = gone(3, isr=(2, 3, 1), leads=2, live={1, 2})
    assert change == PartitionChangeRecord(partition_id=0, topic_id=bytes(16), isr=[2, 1])


def test_the_last_one_in_sync_stays_and_nobody_leads() -> None:
    change = gone(2, isr=(2,), leads=2, live={1, 3})
    assert change == PartitionChangeRecord(partition_id=0, topic_id=bytes(16), leader=NO_LEADER)


def test_where_nobody_in_sync_is_live_nobody_leads() -> None:
    change = gone(2, isr=(2, 3), leads=2, live={1})
    assert change is not None
    assert (change.isr, change.leader) == ([3], NO_LEADER)


def test_where_it_mattered_nothing_changes_nothing() -> None:
    assert gone(3, isr=(2, 1), leads=2, live={1, 2}) is None
