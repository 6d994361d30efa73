"""Bugs that replication could have, most of which Kafka once had, each as a patch; and what finds it.

The patches of `leader`, `epochs` and `follower` use public names only, because learners write these modules.

    PYTHONPATH=chapters/04-replication-isr/tests python -m replication_bugs [PART OF A NAME…] [--shrink]

looks for every bug, with its known seed first and then with 500 others, and prints the table. `--shrink` also names the
faults that matter.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from replication_stage import Stage
from replication_world import World
from simulation_planted import Bug, open_to, print_table

from minibroker.metadata.image import Image, PartitionImage
from minibroker.partitions.access import Gate
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import Appended, EpochEnd, LocalPartition, Reader
from minibroker.partitions.producers import ProducerStates
from minibroker.replication import authority, follower
from minibroker.replication.authority import IsrChange
from minibroker.replication.epochs import EpochCache
from minibroker.replication.follower import Fetched
from minibroker.replication.leader import Altered, IsrProposal, Leadership
from minibroker.replication.replica import Replica
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchRequest

SCENARIOS = Path(__file__).parent / "scenarios"


# Acknowledging and showing too early ----------------------------------------------------------------------------------


def _acks_at_once(self: Replica, appended: Appended, *, acks: int) -> ErrorCode:
    return ErrorCode.NONE if self.leading else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _bound_at_the_end(self: LocalPartition, reader: Reader) -> int:
    return self.log_end_offset


def _one_is_enough(self: Leadership, min_insync_replicas: int) -> int:
    return 1


def _only_in_sync(self: Leadership) -> frozenset[int]:
    return frozenset(self.isr)


def _only_proposed(self: Leadership) -> frozenset[int]:
    return frozenset(self.pending.members if self.pending else self.isr)


def _unknown_is_everything(self: Leadership, log_end_offset: int, *, min_insync_replicas: int) -> int | None:
    if len(self.isr) < self.min_isr(min_insync_replicas):
        return None
    ends = [it.log_end_offset for node_id, it in self.followers.items() if node_id in self.maximal_isr]
    return min([log_end_offset, *(end for end in ends if end >= 0)])


def _lead_with_all(self: Replica, image: PartitionImage, broker_epochs: Mapping[int, int], now_ms: int) -> None:
    self.high_watermark = self.log.log_end_offset
    _LEAD(self, image, broker_epochs, now_ms)


_LEAD = Replica._lead


# Truncation and epochs ------------------------------------------------------------------------------------------------


def _follow_from_watermark(self: Replica, image: PartitionImage) -> None:
    _FOLLOW(self, image)
    self.log.truncate(self.high_watermark)
    self.high_watermark = min(self.high_watermark, self.log.log_end_offset)


_FOLLOW = Replica._follow


def _end_of_leaders_epoch(leaders: EpochEnd, epochs: EpochCache, *, log_end_offset: int) -> int:
    return min(leaders.end_offset, log_end_offset)


def _never_diverges(self: Replica, offset: int, *, last_fetched_epoch: int) -> None:
    return None


def _keep_all(self: EpochCache, offset: int) -> None:
    pass


def _any_epoch(self: LocalPartition, current_leader_epoch: int = -1) -> None:
    self.replica.check_leading()


# The in-sync set, and stale requests ----------------------------------------------------------------------------------


def _may_join_at_watermark(self: Leadership, replica_id: int, *, high_watermark: int) -> bool:
    with patch.object(self, "epoch_start_offset", 0):
        return _MAY_JOIN(self, replica_id, high_watermark=high_watermark)


def _may_join_in_any_life(self: Leadership, replica_id: int, *, high_watermark: int) -> bool:
    registered = {replica_id: self.followers[replica_id].broker_epoch}
    with patch.object(self, "broker_epochs", registered):
        return _MAY_JOIN(self, replica_id, high_watermark=high_watermark)


_MAY_JOIN = Leadership.may_join


def _gives_up_at_any_refusal(self: Leadership, proposal: IsrProposal, altered: Altered) -> bool:
    is_refused = altered.code is not ErrorCode.NONE
    return _ON_ALTERED(self, proposal, altered._replace(code=ErrorCode.INVALID_REQUEST) if is_refused else altered)


_ON_ALTERED = Leadership.on_altered


def _no_comparison(partition: PartitionImage, change: IsrChange) -> None:
    pass


def _never(*_arguments: object) -> bool:
    return False


def _check_members_of_any_life(image: Image, partition: PartitionImage, change: IsrChange, broker_id: int) -> None:
    isr = [(node_id, -1) for node_id, _epoch in change.isr]
    _CHECK_MEMBERS(image, partition, replace(change, isr=isr), broker_id)


_CHECK_MEMBERS = authority._check_members


def _change_as_if_whole(*arguments: Any) -> Any:
    return _CHANGE(*arguments[:-1], True)  # type: ignore[call-arg]


_CHANGE = authority.change_on_return


# Idempotence ----------------------------------------------------------------------------------------------------------


def _takes_all(self: ProducerStates, header: Any) -> Any:
    try:
        return _CHECK(self, header)
    except Refused:
        return None


_CHECK: Callable[[ProducerStates, Any], Any] = ProducerStates.check


def _forget_producers(self: Replica, fetched: Fetched) -> bool:
    with patch.object(ProducerStates, "on_append", lambda *_arguments: None):
        return _ON_FETCHED(self, fetched)


_ON_FETCHED = Replica.on_fetched


# Trust and recovery ---------------------------------------------------------------------------------------------------


def _first_one(
    self: authority.ElectLeaders, partition: PartitionImage, live: Sequence[int], ends: Mapping[int, authority.LogEnd]
) -> int:
    return live[0]


# The bugs -------------------------------------------------------------------------------------------------------------


_bug = partial(Bug.in_world, World)
_shown = partial(Bug.in_scenario, Stage, SCENARIOS)

BUGS = (
    _bug("acknowledged before the watermark", (Replica, "verdict", _acks_at_once), seed=2, invariant=2),
    _bug("consumers read past the watermark", (LocalPartition, "_bound", _bound_at_the_end), seed=2, invariant=6),
    _bug("no min.insync.replicas", (Leadership, "min_isr", _one_is_enough), seed=2, invariant=1),
    _bug("a new leader's watermark is its end", (Replica, "_lead", _lead_with_all), seed=1, invariant=12),
    _bug(
        "a silent follower counts as complete",
        (Leadership, "watermark", _unknown_is_everything),
        seed=1,
        invariant=12,
    ),
    _bug(
        "the watermark ignores a pending set (KIP-497)",
        (Leadership, "maximal_isr", property(_only_in_sync)),
        seed=2,
        invariant=12,
    ),
    _bug("only the pending set counts", (Leadership, "maximal_isr", property(_only_proposed)), seed=1, invariant=12),
    _bug(
        "a refused proposal is forgotten", (Leadership, "on_altered", _gives_up_at_any_refusal), seed=211, invariant=11
    ),
    _bug("joins before the epoch's start", (Leadership, "may_join", _may_join_at_watermark), seed=8, invariant=13),
    _bug("in-sync sets without compare-and-set", (authority, "_check_epochs", _no_comparison), seed=14, invariant=13),
    _bug(
        "a follower cuts at its watermark (KIP-101)", (Replica, "_follow", _follow_from_watermark), seed=2, invariant=1
    ),
    _bug("diverging logs are not noticed", (Replica, "diverging_epoch", _never_diverges), seed=3, invariant=11),
    _bug(
        "two failovers, one comparison (KIP-279)", (follower, "common_end", _end_of_leaders_epoch), seed=99, invariant=0
    ),
    _bug("epochs stay when records are cut off", (EpochCache, "truncate_end", _keep_all), seed=19, invariant=0),
    _shown("fetches name no epoch (KIP-320)", (LocalPartition, "check_leader", _any_epoch), by="kip-320-fenced-fetch"),
    _bug(
        "in sync after an unclean stop (KIP-966)",
        (authority, "change_on_return", _change_as_if_whole),
        seed=9,
        invariant=1,
    ),
    _bug(
        "fetches of an earlier incarnation count (KIP-903)",
        (Leadership, "is_stale", _never),
        (Leadership, "may_join", _may_join_in_any_life),
        (authority, "_check_members", _check_members_of_any_life),
        seed=66,
        invariant=13,
    ),
    _bug("sequence numbers are not checked", (ProducerStates, "check", _takes_all), seed=12, invariant=3),
    _bug("followers learn no sequence numbers", (Replica, "on_fetched", _forget_producers), seed=3, invariant=4),
    _bug("a stranger's fetch is believed", (Gate, "_if_allowed", open_to(FetchRequest)), seed=2, invariant=11),
    _bug(
        "an unclean election takes the first replica",
        (authority.ElectLeaders, "_most_complete", _first_one),
        seed=2,
        invariant=1,
    ),
)


if __name__ == "__main__":
    print_table(BUGS, sys.argv[1:])
