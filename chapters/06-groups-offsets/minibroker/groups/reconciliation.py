"""Reconciliation: one step of a member from its current assignment to its target (KIP-848). A pure module.

A partition must never have two owners. So it moves from one member to another in three heartbeats. The old owner
learns that it must give up the partition, the old owner reports that it has done so, and the new owner gets it.

    member a                                 member b
    epoch 4, assigned 0 1                    epoch 0                        target of epoch 5: a has 0, b has 1
    epoch 4, assigned 0, revoking 1          epoch 5, nothing, UNRELEASED   a still owns 1
    epoch 5, assigned 0                                                     a has reported that it owns only 0
                                             epoch 5, assigned 1

The rules for a member that sends a heartbeat:

1. While the member still owns partitions that it must give up, its assignment stays the same. A newer target would add
   more partitions to give up, and in a busy group the member would never finish.
2. The member keeps the partitions that are in its target. If it owns others, it must give them up, and keeps its epoch.
3. Otherwise it gets the missing partitions that are free, and the epoch of the target.
"""

from collections.abc import Callable, Set
from dataclasses import replace

from minibroker.groups.consumer_members import NOTHING, Held, Member, MemberState, Owned, meets
from minibroker.groups.server_assignors import Partitions

IsFree = Callable[[bytes, int], bool]
"""Says whether no other member holds the partition with this topic id and number."""


def reconcile(
    member: Member,
    *,
    target_epoch: int,
    target: Partitions[bytes],
    topics: Set[bytes],
    owned: Owned | None,
    is_free: IsFree,
) -> Member:
    """The member after one step. It keeps and gets only partitions of `topics`, to which it subscribes.

    `owned` are the partitions that the member reports. None means that the heartbeat has no such report, so the member
    may still own all that it had.
    """
    if member.state is MemberState.UNREVOKED and _owns(owned, member.revoking):
        return _revoke_unsubscribed(member, topics)
    if member.is_reconciled_to(target_epoch) and member.assigned.keys() <= topics:
        return member
    kept, rest = _split(member.assigned, {it: target[it] for it in target.keys() & topics})
    if rest and _owns(owned, rest):
        return replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=rest)
    return _advance(member, target_epoch, {it: target[it] for it in target.keys() & topics}, kept, is_free)


def _owns(owned: Owned | None, held: Held) -> bool:
    return owned is None or meets(owned, held)


def _revoke_unsubscribed(member: Member, topics: Set[bytes]) -> Member:
    """Make a member that is giving up partitions also give up those of topics that it no longer subscribes to."""
    if member.assigned.keys() <= topics:
        return member
    kept, rest = _split(member.assigned, {it: frozenset(member.assigned[it]) for it in member.assigned.keys() & topics})
    return replace(member, assigned=kept, revoking=_merged(member.revoking, rest))


def _split(held: Held, wanted: Partitions[bytes]) -> tuple[Held, Held]:
    """Divide the held partitions into those that are wanted and the others."""
    kept, rest = {}, {}
    for topic_id, epochs in held.items():
        numbers = wanted.get(topic_id, frozenset())
        if inside := {number: epoch for number, epoch in epochs.items() if number in numbers}:
            kept[topic_id] = inside
        if len(inside) < len(epochs):
            rest[topic_id] = {number: epoch for number, epoch in epochs.items() if number not in numbers}
    return kept, rest


def _merged(first: Held, second: Held) -> Held:
    return {it: {**first.get(it, {}), **second.get(it, {})} for it in first.keys() | second.keys()}


def _advance(member: Member, target_epoch: int, target: Partitions[bytes], kept: Held, is_free: IsFree) -> Member:
    """Give the member the missing partitions that are free."""
    missing = {it: target[it] - kept.get(it, {}).keys() for it in target}
    added = {
        topic_id: {number: target_epoch for number in sorted(numbers) if is_free(topic_id, number)}
        for topic_id, numbers in missing.items()
    }
    has_all = all(len(added[it]) == len(missing[it]) for it in missing)
    return replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
        state=MemberState.STABLE if has_all else MemberState.UNRELEASED,
        assigned=_merged(kept, {it: epochs for it, epochs in added.items() if epochs}),
        revoking=NOTHING,
    )
