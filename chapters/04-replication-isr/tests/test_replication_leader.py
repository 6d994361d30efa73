"""What a leader decides: how far everybody is, who is in sync, and what it believes while nobody has told it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
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


def test_the_watermark_is_the_least_end_of_all_logs_that_count() -> None:
    it = leading([1, 2])
    fetch(it, 2, 40)
    fetch(it, 3, 20)
    assert it.watermark(100, min_insync_replicas=1) == 40
    fetch(it, 2, 100)
    assert it.watermark(70, min_insync_replicas=1) == 70


def test_nothing_is_promised_in_the_name_of_a_follower_that_was_not_heard_of() -> None:
    it = leading()
    fetch(it, 2, 100)
    assert it.watermark(100, min_insync_replicas=1) == -1


@pytest.mark.parametrize("members", [{1}, {1, 2, 3}], ids=["to-leave", "to-join"])
def test_while_a_proposal_is_under_way_both_sets_count(members: set[int]) -> None:
    """KIP-497: who is to join, in case it has joined; who is to leave, in case it has not left."""
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


def test_a_partition_makes_do_with_the_replicas_it_has() -> None:
    it = leading([1], replicas=(1,))
    assert it.min_isr(3) == 1
    assert it.watermark(100, min_insync_replicas=3) == 100
    assert leading().min_isr(3) == 3
    assert leading().min_isr(2) == 2


def test_the_low_watermark_is_the_least_start_of_those_in_sync() -> None:
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


def test_members_have_the_benefit_of_the_doubt_for_as_long_as_a_lag_may_last() -> None:
    it = leading()
    assert lagging(it, LAG_MS_MAX) == []
    assert lagging(it, LAG_MS_MAX + 1) == [2, 3]


def test_only_members_lag() -> None:
    it = leading([1, 2])
    assert lagging(it, LAG_MS_MAX + 1) == [2]


def test_who_has_everything_does_not_lag_however_long_it_has_been_silent() -> None:
    """Nothing was written meanwhile: there was nothing to fetch."""
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
    """Under load the leader's log is always a little longer, and nobody would ever be caught up."""
    it = leading([1, 2])
    for now_ms in range(0, 120_000, 10_000):
        end = 100 + now_ms // 100
        fetch(it, 2, end - 100, end=end, now_ms=now_ms)
        assert lagging(it, now_ms, end=end) == []
    # At its last fetch the leader had 1300, and it does not have that.
    fetch(it, 2, 1299, end=1400, now_ms=130_000)
    fetch(it, 2, 1301, end=1500, now_ms=150_000)
    assert lagging(it, 150_000, end=1500) == [2]


def test_a_late_fetch_does_not_take_back_what_was_seen() -> None:
    progress = Progress(caught_up_ms=500)
    progress.on_fetch(10, leader_end_offset=10, now_ms=400)
    assert progress.caught_up_ms == 500


def test_who_is_let_in_without_ever_having_caught_up_has_no_benefit_of_the_doubt() -> None:
    it = leading([1, 2])
    fetch(it, 3, 50, end=100, now_ms=1)
    it.adopt((1, 2, 3), 10)
    assert lagging(it, 2) == [3]


def test_new_replicas_begin_with_nothing_and_old_ones_keep_what_they_have() -> None:
    it = leading([1, 2])
    fetch(it, 2, 40)
    it.on_replicas((1, 2, 4))
    assert (it.replicas, set(it.followers)) == ((1, 2, 4), {2, 4})
    assert (it.followers[2].log_end_offset, it.followers[4].log_end_offset) == (40, -1)
    it.adopt((1, 2, 4), 10)
    assert it.watermark(100, min_insync_replicas=1) == -1
    assert lagging(it, 1) == [4]


# Who may join ---------------------------------------------------------------------------------------------------------


def test_who_has_all_that_is_promised_may_join() -> None:
    it = leading([1, 2])
    fetch(it, 3, 49, epoch=13)
    assert not it.may_join(3, high_watermark=50)
    fetch(it, 3, 50, epoch=13)
    assert it.may_join(3, high_watermark=50)


def test_nobody_may_join_without_all_that_was_there_when_the_epoch_began() -> None:
    """KAFKA-7128: a new leader may not know yet how much was promised before it."""
    it = leading([1, 2], epoch_start_offset=80)
    fetch(it, 3, 79, epoch=13)
    assert not it.may_join(3, high_watermark=50)
    fetch(it, 3, 80, epoch=13)
    assert it.may_join(3, high_watermark=50)


def test_a_member_does_not_join_and_nobody_joins_while_a_proposal_is_under_way() -> None:
    it = leading([1, 2])
    fetch(it, 2, 100, epoch=12)
    fetch(it, 3, 100, epoch=13)
    assert not it.may_join(2, high_watermark=0)
    it.propose({1}, 0)
    assert not it.may_join(3, high_watermark=0)


@pytest.mark.parametrize(
    ("fetched_with", "registered", "expected"),
    [
        pytest.param(13, 13, True, id="the-same-life"),
        pytest.param(13, 14, False, id="it-was-registered-anew-since"),
        pytest.param(14, 13, False, id="we-have-not-heard-of-its-registration"),
        pytest.param(-1, 13, True, id="it-does-not-say"),
        pytest.param(13, None, False, id="it-is-not-registered"),
    ],
)
def test_what_a_follower_has_counts_only_for_the_life_in_which_it_is_registered(
    fetched_with: int, registered: int | None, expected: bool
) -> None:
    """KIP-903."""
    epochs = {1: 11, 2: 12} | ({3: registered} if registered is not None else {})
    it = leading([1, 2], broker_epochs=epochs)
    fetch(it, 3, 100, epoch=fetched_with)
    assert it.may_join(3, high_watermark=0) == expected


def test_a_fetch_of_an_earlier_life_is_stale_whoever_tells_of_the_new_one() -> None:
    """KIP-903: the authority's news, or a fetch of the new life, whatever comes first."""
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


def test_a_proposal_names_what_it_is_based_on_and_in_which_life_each_member_is() -> None:
    it = leading([1])
    fetch(it, 2, 100, epoch=22)
    fetch(it, 3, 100)
    proposal = it.propose({3, 1, 2}, 0)
    assert proposal == IsrProposal(leader_epoch=5, partition_epoch=9, isr=((1, 11), (2, 22), (3, 13)))
    assert proposal.members == (1, 2, 3)
    assert it.pending == proposal


def test_there_is_one_proposal_at_a_time_and_the_leader_is_in_it() -> None:
    it = leading()
    with pytest.raises(AssertionError, match="in sync with itself"):
        it.propose({2, 3}, 0)
    it.propose({1, 2}, 0)
    with pytest.raises(AssertionError, match="under way"):
        it.propose({1, 3}, 0)


def test_an_accepted_set_counts_and_it_alone() -> None:
    it = leading([1, 2])
    proposal = it.propose({1}, 0)
    assert it.on_altered(proposal, Altered(ErrorCode.NONE, (1,), 10))
    assert (it.isr, it.partition_epoch, it.pending) == ((1,), 10, None)
    assert it.maximal_isr == {1}


@pytest.mark.parametrize("code", sorted(REFUSED_FOR_GOOD))
def test_after_a_refusal_for_good_the_old_set_counts(code: ErrorCode) -> None:
    it = leading([1, 2])
    proposal = it.propose({1, 2, 3}, 0)
    assert it.on_altered(proposal, Altered(code))
    assert (it.isr, it.partition_epoch, it.pending) == ((1, 2), 9, None)
    assert it.maximal_isr == {1, 2}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_with_any_other_answer_both_sets_count_on(code: ErrorCode) -> None:
    """Perhaps the first copy of the proposal was accepted, and this is the answer to the second one."""
    it = leading([1, 2])
    proposal = it.propose({1, 2, 3}, 0)
    assert not it.on_altered(proposal, Altered(code))
    assert it.maximal_isr == {1, 2, 3}
    assert it.pending == proposal


def test_news_end_a_proposal_whatever_became_of_it() -> None:
    it = leading([1, 2, 3])
    it.propose({1, 2}, 0)
    assert it.adopt((1, 3), 10)
    assert (it.isr, it.pending, it.partition_epoch) == ((1, 3), None, 10)


@pytest.mark.parametrize("partition_epoch", [8, 9])
def test_old_news_are_none(partition_epoch: int) -> None:
    it = leading([1, 2])
    proposal = it.propose({1}, 0)
    assert not it.adopt((1, 3), partition_epoch)
    assert (it.isr, it.pending, it.partition_epoch) == ((1, 2), proposal, 9)


def test_a_refusal_of_an_earlier_proposal_says_nothing_of_this_one() -> None:
    it = leading([1, 2])
    first = it.propose({1}, 0)
    it.adopt((1, 2), 10)
    second = it.propose({1}, 0)
    assert not it.on_altered(first, Altered(ErrorCode.INELIGIBLE_REPLICA))
    assert it.pending == second


def test_that_a_proposal_was_accepted_is_true_even_if_it_was_given_up() -> None:
    """Two copies of it were under way. The late one was refused, and heard of first."""
    it = leading([1, 2])
    proposal = it.propose({1, 2, 3}, 0)
    it.on_altered(proposal, Altered(ErrorCode.INELIGIBLE_REPLICA))
    assert it.on_altered(proposal, Altered(ErrorCode.NONE, (1, 2, 3), 10))
    assert it.isr == (1, 2, 3)


def test_an_answer_to_an_earlier_time_in_office_is_none() -> None:
    it = leading([1, 2])
    earlier = IsrProposal(leader_epoch=4, partition_epoch=9, isr=((1, 11),))
    assert not it.on_altered(earlier, Altered(ErrorCode.NONE, (1,), 10))
    assert it.isr == (1, 2)


def test_a_proposal_without_an_answer_is_made_again_after_a_while() -> None:
    it = leading([1, 2])
    assert it.overdue(10 * PROPOSAL_RETRY_MS) is None
    proposal = it.propose({1}, 0)
    assert it.overdue(PROPOSAL_RETRY_MS - 1) is None
    assert it.overdue(PROPOSAL_RETRY_MS) == proposal
    assert it.overdue(2 * PROPOSAL_RETRY_MS - 1) is None
    assert it.overdue(2 * PROPOSAL_RETRY_MS) == proposal


# Beside the authority -------------------------------------------------------------------------------------------------


class LeaderBesideTheAuthority(RuleBasedStateMachine):
    """Proposals and answers are lost, doubled and late; nodes come back with less; the leader hears of it, or not yet.

    Whatever happens: who is in sync for the authority counts for the leader. So whoever leads next has everything that
    this leader has promised.
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
