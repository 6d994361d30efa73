"""Bugs that coordinators of groups could have, each as a patch; and the seed of `groups_world` that finds it.

    python -m groups_bugs [PART OF A NAME…]

looks for every bug anew, in 500 seeds at most, and prints the table. PYTHONPATH must name the tests of chapters 04 and
06.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

from groups_world import World
from simulation_planted import Bug, print_table

from minibroker.coordinators.coordinator import Coordinator, Event
from minibroker.coordinators.hosting import Coordinators
from minibroker.coordinators.tickets import Ticket
from minibroker.groups import rebalancing, reconciliation
from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_facts import ClassicFacts
from minibroker.groups.classic_members import Member, Members
from minibroker.groups.classic_timers import NEVER
from minibroker.groups.consumer_members import MemberState
from minibroker.groups.errors import GroupRefused
from minibroker.groups.shard import GroupShard
from minibroker.groups.steps import Reply, Step
from minibroker.groups.tables.sync_group import SyncGroupResponse
from minibroker.segments.checkpoint import TopicPartition
from minibroker.simulation import cluster
from minibroker.simulation.faults import Fault
from minibroker.simulation.host import Host
from minibroker.wire.codes import ErrorCode


def _syncs_at_once(self: Coordinator[GroupShard], reply: Reply) -> None:
    """An assignment is answered before its record is replicated."""
    if isinstance(reply.response, SyncGroupResponse):
        self._answer(reply)
    else:
        _QUEUE_REPLY(self, reply)


_QUEUE_REPLY = Coordinator._queue_reply


def _no_sync_timer(self: ClassicGroup, step: Step, now_ms: int) -> None:
    """A member that never syncs is not removed."""
    _ANSWER_JOINS(self, step, now_ms)
    self._sync_deadline_ms = NEVER


_ANSWER_JOINS = ClassicGroup._answer_joins


def _any_id_of_the_instance(self: Members, member_id: str, instance_id: str | None) -> Member:
    """The old id of a static member is as good as the new one."""
    owner = self.of_instance(instance_id)
    return owner if owner is not None else _CHECK(self, member_id, instance_id)


_CHECK = Members.check


def _any_generation(self: ClassicFacts, member_id: str, instance_id: str | None, _generation_id: int) -> Member:
    """A request of an earlier generation counts."""
    if self.state.value == "Dead":
        raise GroupRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return self._members.check(member_id, instance_id)


def _all_are_free(member: Any, **facts: Any) -> Any:
    """A partition is added though another member holds it."""
    return _RECONCILE(member, **{**facts, "is_free": lambda _topic_id, _number: True})


_RECONCILE = reconciliation.reconcile


def _epoch_first(member: Any, **facts: Any) -> Any:
    """A member has the epoch of the target while it still gives up partitions."""
    after = _RECONCILE(member, **facts)
    if after is not member and after.state is MemberState.UNREVOKED:
        return replace(after, epoch=facts["target_epoch"], previous_epoch=member.epoch)
    return after


def _never_suspects(
    self: Coordinators[Any], name: TopicPartition | None, ticket: Ticket, event: Event[Any], *, may_wait: bool = True
) -> None:
    """A coordinator answers although the controller may have replaced it."""
    coordinator = None if name is None else self._coordinators.get(name)
    if coordinator is None:
        ticket.complete(ErrorCode.NOT_COORDINATOR)
    else:
        coordinator.handle(ticket, event, may_wait=may_wait)


class CutOffCoordinators(World):
    """Coordinators are cut off from all but the observer, until another one has answered commits: a rare window."""

    KINDS = (cluster.ISOLATE._replace(duration_ms=(5000, 7000)),)
    DISASTERS = ()
    TRIALS = ()
    session_ms = 1000

    def host_hit(self, fault: Fault) -> Host:
        return self.leader() or super().host_hit(fault)

    def parties(self) -> list[str]:
        return [*super().parties(), *(it.name for it in self.crowd)]


_bug = partial(Bug.in_world, World)

BUGS = (
    _bug(
        "a sync is answered before it is durable", (Coordinator, "_queue_reply", _syncs_at_once), seed=1, invariant=20
    ),
    _bug("no time limit for a sync", (ClassicGroup, "_answer_joins", _no_sync_timer), seed=147, invariant=23),
    _bug("an old static id lives on", (Members, "check", _any_id_of_the_instance), seed=10, invariant=14),
    _bug("an old generation commits", (ClassicFacts, "_check_member", _any_generation), seed=18, invariant=14),
    _bug(
        "partitions are added without a look at their owner",
        (rebalancing, "reconcile", _all_are_free),
        seed=1,
        invariant=20,
    ),
    _bug(
        "the epoch rises while partitions are given up", (rebalancing, "reconcile", _epoch_first), seed=1, invariant=21
    ),
    Bug.in_world(
        CutOffCoordinators,
        "a coordinator that was cut off answers",
        (Coordinators, "pass_to", _never_suspects),
        seed=4,
        invariant=8,
    ),
)


if __name__ == "__main__":
    print_table(BUGS, sys.argv[1:])
