"""What a leader decides: the high watermark, the in-sync set, and what counts while a proposal is under way."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from cases import case
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from replication_nodes import AuthorityNode

from minibroker.metadata.image import PartitionImage
from minibroker.replication.leader import (
    PROPOSAL_RETRY_MS,
    REFUSED_FOR_GOOD,
    Altered,
    IsrProposal,
    Leadership,
    Progress,
)
from minibroker.wire.codes import ErrorCode

LAG_MS_MAX = 30_000
PARTITION = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=5, partition_epoch=9)
BROKER_EPOCHS = {1: 11, 2: 12, 3: 13}


def leading(
    isr: Iterable[int] = (1, 2, 3),
    *,
    epoch_start_offset: int = 0,
    broker_epochs: Mapping[int, int] = BROKER_EPOCHS,
    replicas: tuple[int, ...] = (1, 2, 3),
) -> Leadership:
    image = replace(PARTITION, isr=tuple(isr), replicas=replicas)
    return Leadership(1, image, broker_epochs, epoch_start_offset=epoch_start_offset, now_ms=0)


def fetch(
    it: Leadership, replica_id: int, offset: int, *, end: int = 100, now_ms: int = 0, epoch: int = -1, start: int = 0
) -> None:
    it.on_fetch(
        replica_id,
        broker_epoch=epoch,
        offset=offset,
        log_start_offset=start,
        leader_end_offset=end,
        now_ms=now_ms,
    )


# The high watermark ---------------------------------------------------------------------------------------------------


def test_the_watermark_is_the_smallest_end_of_all_replicas_that_count() -> None:
    it = leading([1, 2])
    fetch(it, 2, 40)
    fetch(it, 3, 20)
    assert it.watermark(100, min_insync_replicas=1) == 40
    fetch(it, 2, 100)
    assert it.watermark(70, min_insync_replicas=1) == 70


def test_the_watermark_waits_for_a_member_that_has_not_fetched_yet() -> None:
    it = leading()
    fetch(it, 2, 100)
    assert it.watermark(100, min_insync_replicas=1) == -1


def test_while_a_proposal_is_under_way_both_sets_count() -> None:
    """KIP-497: a follower that is to join may have joined, and one that is to leave may still be a member."""
    for members in [{1}, {1, 2, 3}]:
        with case(members):
            it = leading([1, 2])
            fetch(it, 2, 50)
            fetch(it, 3, 30)
            it.propose(members, 0)
            assert it.maximal_isr == {1, 2} | members
            assert it.watermark(100, min_insync_replicas=1) == (30 if 3 in members else 50)


def test_with_too_few_in_sync_nothing_new_becomes_visible() -> None:
    """KIP-966. Members that are only proposed are not in sync yet."""
    it = leading([1])
    fetch(it, 2, 100)
    assert it.watermark(100, min_insync_replicas=1) == 100
    assert it.watermark(100, min_insync_replicas=2) is None
    it.propose({1, 2}, 0)
    assert it.watermark(100, min_insync_replicas=2) is None


def test_a_partition_with_few_replicas_needs_only_those_in_sync() -> None:
    it = leading([1], replicas=(1,))
    assert it.min_isr(3) == 1
    assert it.watermark(100, min_insync_replicas=3) == 100
    assert leading().min_isr(3) == 3
    assert leading().min_isr(2) == 2


def test_the_low_watermark_is_the_smallest_start_of_the_replicas_in_sync() -> None:
    it = leading([1, 2])
    assert it.low_watermark(10) == -1
    fetch(it, 2, 50, start=5)
    fetch(it, 3, 50, start=2)
    assert it.low_watermark(10) == 5
    fetch(it, 2, 50, start=20)
    assert it.low_watermark(10) == 10


# Lagging --------------------------------------------------------------------------------------------------------------


def lagging(it: Leadership, now_ms: int, *, end: int = 100) -> list[int]:
    return it.lagging(leader_end_offset=end, now_ms=now_ms, lag_ms_max=LAG_MS_MAX)


def test_a_member_has_the_whole_lag_time_for_its_first_fetch() -> None:
    it = leading()
    assert lagging(it, LAG_MS_MAX) == []
    assert lagging(it, LAG_MS_MAX + 1) == [2, 3]


def test_only_members_lag() -> None:
    it = leading([1, 2])
    assert lagging(it, LAG_MS_MAX + 1) == [2]


def test_a_follower_with_the_whole_log_does_not_lag_even_if_it_is_silent() -> None:
    """Nothing was written, so there was nothing to fetch."""
    it = leading([1, 2])
    fetch(it, 2, 100, end=100, now_ms=10)
    assert lagging(it, 10 * LAG_MS_MAX) == []
    assert lagging(it, 10 * LAG_MS_MAX, end=101) == [2]


def test_a_follower_has_caught_up_when_it_asks_for_the_end() -> None:
    it = leading([1, 2])
    fetch(it, 2, 100, end=100, now_ms=20_000)
    assert lagging(it, 20_000 + LAG_MS_MAX, end=200) == []
    assert lagging(it, 20_000 + LAG_MS_MAX + 1, end=200) == [2]


def test_a_follower_had_caught_up_at_its_last_fetch_if_it_has_by_now_what_the_leader_had_then() -> None:
    """Under load the leader's log is always a little longer, and no follower would ever catch up."""
    it = leading([1, 2])
    for now_ms in range(0, 120_000, 10_000):
        end = 100 + now_ms // 100
        fetch(it, 2, end - 100, end=end, now_ms=now_ms)
        assert lagging(it, now_ms, end=end) == [], f"at {now_ms} ms the follower had what the leader had 10 s before"
    # At its last fetch the leader's log ended at 1300, and the follower does not have that much.
    fetch(it, 2, 1299, end=1400, now_ms=130_000)
    fetch(it, 2, 1301, end=1500, now_ms=150_000)
    assert lagging(it, 150_000, end=1500) == [2]


def test_a_late_fetch_does_not_make_a_follower_lag() -> None:
    progress = Progress(caught_up_ms=500)
    progress.on_fetch(10, leader_end_offset=10, now_ms=400)
    assert progress.caught_up_ms == 500, "a fetch of 400 ms was handled late, and `caught_up_ms` must not go back"


def test_a_new_member_that_has_never_caught_up_lags_at_once() -> None:
    it = leading([1, 2])
    fetch(it, 3, 50, end=100, now_ms=1)
    it.adopt((1, 2, 3), 10)
    assert lagging(it, 2) == [3]


def test_nothing_is_known_of_new_replicas_and_old_ones_keep_their_progress() -> None:
    it = leading([1, 2])
    fetch(it, 2, 40)
    it.on_replicas((1, 2, 4))
    assert (it.replicas, set(it.followers)) == ((1, 2, 4), {2, 4})
    assert (it.followers[2].log_end_offset, it.followers[4].log_end_offset) == (40, -1)
    it.adopt((1, 2, 4), 10)
    assert it.watermark(100, min_insync_replicas=1) == -1
    assert lagging(it, 1) == [4]


# Joining the in-sync set ----------------------------------------------------------------------------------------------


def test_a_follower_with_all_acknowledged_records_may_join() -> None:
    it = leading([1, 2])
    fetch(it, 3, 49, epoch=13)
    assert not it.may_join(3, high_watermark=50)
    fetch(it, 3, 50, epoch=13)
    assert it.may_join(3, high_watermark=50)


def test_a_follower_without_the_records_from_before_the_epoch_may_not_join() -> None:
    """KAFKA-7128: a new leader may not know yet which records were acknowledged before."""
    it = leading([1, 2], epoch_start_offset=80)
    fetch(it, 3, 79, epoch=13)
    assert not it.may_join(3, high_watermark=50)
    fetch(it, 3, 80, epoch=13)
    assert it.may_join(3, high_watermark=50)


def test_no_follower_joins_while_a_proposal_is_under_way_and_no_member_joins_again() -> None:
    it = leading([1, 2])
    fetch(it, 2, 100, epoch=12)
    fetch(it, 3, 100, epoch=13)
    assert not it.may_join(2, high_watermark=0)
    it.propose({1}, 0)
    assert not it.may_join(3, high_watermark=0)


def test_a_fetch_counts_only_for_the_registered_incarnation() -> None:
    """KIP-903."""
    cases = {
        "the same incarnation": (13, 13, True),
        "it has registered again since": (13, 14, False),
        "we have not heard of its registration": (14, 13, False),
        "it does not say": (-1, 13, True),
        "it is not registered": (13, None, False),
        "it is not registered, and does not say": (-1, None, False),
    }
    for name, (fetched_with, registered, expected) in cases.items():
        with case(name):
            epochs = {1: 11, 2: 12} | ({3: registered} if registered is not None else {})
            it = leading([1, 2], broker_epochs=epochs)
            fetch(it, 3, 100, epoch=fetched_with)
            assert it.may_join(3, high_watermark=0) == expected


def test_a_fetch_of_an_earlier_incarnation_is_stale_once_a_later_one_is_known() -> None:
    """KIP-903: it is known from the metadata or from a fetch, whichever comes first."""
    it = leading()
    assert not it.is_stale(3, 13)
    assert not it.is_stale(3, -1)
    assert it.is_stale(3, 12)
    fetch(it, 3, 0, epoch=20)
    assert it.is_stale(3, 19)
    it.broker_epochs = {1: 11, 2: 12, 3: 25}
    assert it.is_stale(3, 20)
    assert not it.is_stale(3, 25)


# Proposals ------------------------------------------------------------------------------------------------------------


def test_a_proposal_names_its_partition_epoch_and_each_members_broker_epoch() -> None:
    it = leading([1])
    fetch(it, 2, 100, epoch=22)
    fetch(it, 3, 100)
    proposal = it.propose({3, 1, 2}, 0)
    assert proposal == IsrProposal(leader_epoch=5, partition_epoch=9, isr=((1, 11), (2, 22), (3, 13)))
    assert proposal.members == (1, 2, 3)
    assert it.pending == proposal


def test_there_is_one_proposal_at_a_time_and_it_contains_the_leader() -> None:
    it = leading()
    with pytest.raises(AssertionError, match="in sync with itself"):
        it.propose({2, 3}, 0)
    it.propose({1, 2}, 0)
    with pytest.raises(AssertionError, match="under way"):
        it.propose({1, 3}, 0)


def test_only_the_accepted_set_counts() -> None:
    it = leading([1, 2])
    proposal = it.propose({1}, 0)
    assert it.on_altered(proposal, Altered(ErrorCode.NONE, (1,), 10))
    assert (it.isr, it.partition_epoch, it.pending) == ((1,), 10, None)
    assert it.maximal_isr == {1}


def test_after_a_final_refusal_only_the_old_set_counts() -> None:
    for code in sorted(REFUSED_FOR_GOOD):
        with case(code):
            it = leading([1, 2])
            proposal = it.propose({1, 2, 3}, 0)
            assert it.on_altered(proposal, Altered(code))
            assert (it.isr, it.partition_epoch, it.pending) == ((1, 2), 9, None)
            assert it.maximal_isr == {1, 2}


def test_after_any_other_answer_both_sets_still_count() -> None:
    """Perhaps the first copy of the proposal was accepted, and this is the answer to the second one."""
    cases = [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]
    for code in cases:
        with case(code):
            it = leading([1, 2])
            proposal = it.propose({1, 2, 3}, 0)
            assert not it.on_altered(proposal, Altered(code))
            assert it.maximal_isr == {1, 2, 3}
            assert it.pending == proposal


def test_a_later_partition_epoch_ends_a_proposal() -> None:
    it = leading([1, 2, 3])
    it.propose({1, 2}, 0)
    assert it.adopt((1, 3), 10)
    assert (it.isr, it.pending, it.partition_epoch) == ((1, 3), None, 10)


def test_an_old_partition_epoch_is_ignored() -> None:
    for partition_epoch in [8, 9]:
        with case(partition_epoch):
            it = leading([1, 2])
            proposal = it.propose({1}, 0)
            assert not it.adopt((1, 3), partition_epoch)
            assert (it.isr, it.pending, it.partition_epoch) == ((1, 2), proposal, 9)


def test_a_refusal_of_an_earlier_proposal_is_ignored() -> None:
    it = leading([1, 2])
    first = it.propose({1}, 0)
    it.adopt((1, 2), 10)
    second = it.propose({1}, 0)
    assert not it.on_altered(first, Altered(ErrorCode.INELIGIBLE_REPLICA))
    assert it.pending == second


def test_an_accepted_proposal_counts_even_after_it_was_given_up() -> None:
    """Two copies of it were under way. The later one was refused, and its answer came first."""
    it = leading([1, 2])
    proposal = it.propose({1, 2, 3}, 0)
    it.on_altered(proposal, Altered(ErrorCode.INELIGIBLE_REPLICA))
    assert it.on_altered(proposal, Altered(ErrorCode.NONE, (1, 2, 3), 10))
    assert it.isr == (1, 2, 3)


def test_an_answer_of_an_earlier_leader_epoch_is_ignored() -> None:
    it = leading([1, 2])
    earlier = IsrProposal(leader_epoch=4, partition_epoch=9, isr=((1, 11),))
    assert not it.on_altered(earlier, Altered(ErrorCode.NONE, (1,), 10))
    assert it.isr == (1, 2)


def test_a_proposal_without_an_answer_is_sent_again_after_a_while() -> None:
    it = leading([1, 2])
    assert it.overdue(10 * PROPOSAL_RETRY_MS) is None
    proposal = it.propose({1}, 0)
    assert it.overdue(PROPOSAL_RETRY_MS - 1) is None
    assert it.overdue(PROPOSAL_RETRY_MS) == proposal
    assert it.overdue(2 * PROPOSAL_RETRY_MS - 1) is None
    assert it.overdue(2 * PROPOSAL_RETRY_MS) == proposal


def test_a_proposal_is_sent_again_after_the_clock_was_set_back() -> None:
    it = leading([1, 2])
    proposal = it.propose({1}, 60_000)
    assert it.overdue(0) == proposal
    assert it.overdue(PROPOSAL_RETRY_MS - 1) is None


# Together with the controller -----------------------------------------------------------------------------------------


class LeaderBesideTheAuthority(RuleBasedStateMachine):
    """Proposals and answers are lost, duplicated and late; nodes lose records; the leader learns of it, or not yet.

    In every case a replica that is in sync for the controller counts for the leader. So the next leader has every
    record that this leader has acknowledged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.authority = AuthorityNode()
        self.epochs = {node_id: self.authority.register(node_id) for node_id in (1, 2, 3)}
        self.authority.create([1, 2, 3])
        self.it = Leadership(
            1, self.authority.partition, self.authority.news.broker_epochs, epoch_start_offset=0, now_ms=0
        )
        self.now_ms, self.end, self.high_watermark = 0, 0, 0
        self.ends = {2: 0, 3: 0}
        self.proposals: list[IsrProposal] = []
        self.answers: list[tuple[IsrProposal, Altered]] = []

    def advance(self) -> None:
        least = self.it.watermark(self.end, min_insync_replicas=1)
        self.high_watermark = max(self.high_watermark, least if least is not None else 0)

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.end += count
        self.advance()

    @rule(node_id=st.sampled_from([2, 3]), count=st.integers(0, 3))
    def fetch(self, node_id: int, count: int) -> None:
        self.ends[node_id] = min(self.ends[node_id] + count, self.end)
        epoch = self.epochs[node_id]
        if not self.it.is_stale(node_id, epoch):
            fetch(self.it, node_id, self.ends[node_id], end=self.end, now_ms=self.now_ms, epoch=epoch)
            self.advance()
            if self.it.may_join(node_id, high_watermark=self.high_watermark):
                self.proposals.append(self.it.propose({*self.it.isr, node_id}, self.now_ms))

    @rule(pause_ms=st.sampled_from([500, PROPOSAL_RETRY_MS, LAG_MS_MAX + 1]))
    def tick(self, pause_ms: int) -> None:
        self.now_ms += pause_ms
        overdue = self.it.overdue(self.now_ms)
        late = self.it.lagging(leader_end_offset=self.end, now_ms=self.now_ms, lag_ms_max=LAG_MS_MAX)
        if overdue is not None:
            self.proposals.append(overdue)
        elif late and self.it.pending is None:
            self.proposals.append(self.it.propose(set(self.it.isr) - set(late), self.now_ms))

    @precondition(lambda self: self.proposals)
    @rule(which=st.integers(0, 100))
    def decide(self, which: int) -> None:
        proposal = self.proposals[which % len(self.proposals)]
        self.answers.append((proposal, self.authority.alter(1, self.epochs[1], proposal)))

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 100))
    def hear(self, which: int) -> None:
        self.it.on_altered(*self.answers[which % len(self.answers)])
        self.advance()

    @rule()
    def tell(self) -> None:
        news = self.authority.news
        self.it.broker_epochs = news.broker_epochs
        self.it.adopt(news.partition.isr, news.partition.partition_epoch)
        self.advance()

    @rule(node_id=st.sampled_from([2, 3]), lost=st.integers(0, 2))
    def restart(self, node_id: int, lost: int) -> None:
        previous = self.epochs[node_id] if lost == 0 else -1
        self.epochs[node_id] = self.authority.register(node_id, previous_broker_epoch=previous)
        self.ends[node_id] = max(self.ends[node_id] - lost, 0)

    @invariant()
    def who_is_in_sync_counts(self) -> None:
        assert set(self.authority.partition.isr) <= self.it.maximal_isr

    @invariant()
    def who_is_in_sync_has_everything_that_is_promised(self) -> None:
        in_sync = set(self.authority.partition.isr) - {1}
        assert all(self.ends[node_id] >= self.high_watermark for node_id in in_sync)


TestLeaderBesideTheAuthority = LeaderBesideTheAuthority.TestCase
TestLeaderBesideTheAuthority.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
