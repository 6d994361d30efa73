"""Claims about the decisions of the transaction coordinator."""

from collections.abc import Callable

from cases import case
from transactions_stage import ID, V1, V2, A, B, Stage

from minibroker.groups.pending import Producer
from minibroker.transactions.ids import EPOCH_GIVEN_MAX, EPOCH_MAX, NO_TIME, Transaction
from minibroker.transactions.markers import TRANSACTION_VERSION_2
from minibroker.transactions.shard import BROKER_PARKED_MS_MAX, PARKED_MS_MAX
from minibroker.transactions.transitions import NEXT, PREPARED, TransactionState
from minibroker.wire.codes import ErrorCode

FENCED = ErrorCode.PRODUCER_FENCED
INVALID = ErrorCode.INVALID_TXN_STATE
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


# One transaction ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_decided_by_one_record_and_complete_after_its_markers() -> None:
    stage = Stage()
    who = stage.begin()
    assert who == Producer(1000, 0)
    assert stage.add(who, A) is stage.add(who, A, B) is ErrorCode.NONE
    assert stage.orders() == []
    assert stage.end(who) == who
    assert stage.label == "PrepareCommit"
    (order,) = stage.orders()
    assert (order.producer, order.is_commit, order.partitions) == (who, True, frozenset({A, B}))
    stage.mark(A)
    assert stage.label == "PrepareCommit"
    stage.mark(B)
    assert (stage.label, stage.state.partitions) == ("CompleteCommit", frozenset())


def test_a_description_shows_the_partitions_that_still_need_their_marker() -> None:
    stage = Stage()
    unmarked = stage.shard.transactions.unmarked
    who = stage.begin()
    stage.add(who, A, B)
    assert unmarked(ID) == {A, B}
    stage.end(who)
    stage.mark(A)
    assert unmarked(ID) == {B}
    stage.mark(B)
    assert unmarked(ID) == frozenset()
    # A late report is about the transaction before, and completes nothing.
    stage.add(who, B)
    assert not stage.shard.transactions.on_marked(ID, [B])
    assert unmarked(ID) == {B}


def test_markers_are_ordered_once_and_only_after_the_decision_is_replicated() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    stage.end(who)
    decided_at = len(stage.log) - 1
    on_replicated = stage.shard.transactions.on_replicated
    assert on_replicated(decided_at) == []
    assert len(on_replicated(decided_at + 1)) == 1
    assert on_replicated(decided_at + 2) == []


def test_the_first_partition_opens_a_transaction_and_later_ones_join_it() -> None:
    stage = Stage()
    who = Producer(7, 3)
    stage.put(Transaction(*who, 60_000, TransactionState.COMPLETE_COMMIT, 5, frozenset({B}), started_ms=2))
    opened_ms = stage.time_ms
    assert stage.add(who, A, version=V2) is ErrorCode.NONE
    assert (stage.label, stage.state.partitions, stage.state.client_version) == (
        "Ongoing",
        frozenset({A}),
        TRANSACTION_VERSION_2,
    )
    stage.wait(10)
    assert stage.add(who, B, version=V2) is ErrorCode.NONE
    assert stage.state.partitions == {A, B}
    assert (stage.state.started_ms, stage.state.updated_ms) == (opened_ms, opened_ms + 10)


def test_a_partition_that_is_added_again_writes_nothing() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A, B)
    written = len(stage.log)
    assert stage.add(who, A) is ErrorCode.NONE
    assert len(stage.log) == written


def test_no_request_reaches_a_state_that_the_table_does_not_have() -> None:
    assert {state for state, _cause in NEXT} == set(TransactionState)
    assert all(following in PREPARED for (state, cause), following in NEXT.items() if cause.name.startswith("ABORT"))


# Identity -------------------------------------------------------------------------------------------------------------


def test_the_next_producer_has_the_next_epoch_and_fences_the_one_before() -> None:
    stage = Stage()
    old = stage.begin()
    new = stage.begin()
    assert new == Producer(old.id, old.epoch + 1)
    for version in (V1, V2):
        with case(f"{version=}"):
            assert stage.add(old, A, version=version) is FENCED
            assert stage.end(old, version=version) is FENCED
    assert stage.verify(old, A) is FENCED
    assert stage.add(new, A) is ErrorCode.NONE
    assert stage.end(old, is_commit=False) is FENCED


def test_a_foreign_producer_id_or_an_unknown_transactional_id_is_refused() -> None:
    stage = Stage()
    stranger = Producer(5, 0)
    for has_id in (False, True):
        with case(f"{has_id=}"):
            assert stage.add(stranger, A) is UNKNOWN
            assert stage.verify(stranger, A) is UNKNOWN
            assert stage.end(stranger) is UNKNOWN
        stage.begin()


def test_a_producer_that_names_its_epoch_gets_the_next_one_and_a_retry_gets_the_same_one() -> None:
    """KIP-360."""
    stage = Stage()
    first = stage.begin()
    second = stage.init(first)
    assert second == Producer(first.id, 1)
    assert [stage.init(first), stage.init(first)] == [second, second]
    assert stage.init(Producer(77, first.epoch)) is FENCED
    assert stage.init(second) == Producer(first.id, 2)
    assert stage.init(first) is FENCED
    assert stage.init(Producer(77, 2)) is FENCED
    assert stage.init(Producer(first.id, -1)) is ErrorCode.INVALID_REQUEST


def test_a_retry_of_init_is_fenced_after_a_failover() -> None:
    """The record has no previous epoch, as in Kafka."""
    stage = Stage()
    first = stage.begin()
    stage.init(first)
    stage.failover()
    assert stage.init(first) is FENCED


def test_after_a_fencing_no_init_counts_as_a_retry() -> None:
    stage = Stage()
    stage.failover()
    first = stage.begin(timeout_ms=1000)
    second = stage.init(first, timeout_ms=1000)
    assert isinstance(second, Producer)
    stage.add(second, A)
    stage.wait(10_000)
    stage.finish()
    assert stage.state.producer == Producer(first.id, 2)
    assert [stage.init(first), stage.init(second)] == [FENCED, FENCED]


def test_only_the_last_epoch_of_a_previous_id_may_be_named() -> None:
    stage = Stage()
    state = Transaction(1000, 0, 60_000, TransactionState.EMPTY, 0, last_epoch=3, previous_producer_id=7)
    stage.put(state)
    assert stage.init(Producer(7, 3)) is FENCED


def test_a_restarted_producer_may_bring_another_timeout() -> None:
    stage = Stage()
    stage.begin(timeout_ms=1000)
    stage.begin(timeout_ms=5000)
    assert stage.state.timeout_ms == 5000


def test_when_the_epochs_are_used_up_a_producer_gets_a_new_id() -> None:
    stage = Stage()
    stage.put(Transaction(7, EPOCH_GIVEN_MAX - 1, 60_000, TransactionState.EMPTY, 0))
    assert stage.begin() == Producer(7, EPOCH_GIVEN_MAX)
    last = Producer(7, EPOCH_GIVEN_MAX)
    new = stage.init(last)
    assert new == Producer(1000, 0)
    assert stage.init(last) == new
    assert stage.state.previous_producer_id == 7
    assert stage.add(last, A) is UNKNOWN


def test_while_there_are_no_ids_the_producer_asks_again() -> None:
    stage = Stage()
    stage.has_ids = False
    assert stage.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.has_ids = True
    stage.begin()


def test_a_timeout_that_is_not_allowed_is_refused() -> None:
    stage = Stage(timeout_ms_max=1000)
    assert stage.init(timeout_ms=1000) == Producer(1000, 0)
    for timeout_ms in (-1, 0, 1001):
        with case(f"{timeout_ms=}"):
            assert stage.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_init_aborts_the_open_transaction_first() -> None:
    stage = Stage()
    old = stage.begin()
    stage.add(old, A)
    assert stage.init() is None
    (order,) = stage.orders()
    assert (order.producer, order.is_commit) == (Producer(old.id, 1), False)
    stage.mark(A)
    assert stage.answers["request 3"] == Producer(old.id, 2)
    assert stage.label == "Empty"


def test_init_waits_for_the_markers_of_a_decided_transaction() -> None:
    stage = Stage()
    old = stage.begin()
    stage.add(old, A)
    stage.end(old)
    assert stage.init() is None
    stage.mark(A)
    assert stage.answers["request 4"] == Producer(old.id, 1)
    assert (stage.label, stage.state.started_ms) == ("Empty", NO_TIME)


def test_each_decision_says_when_it_was_made() -> None:
    stage = Stage()
    stage.failover()
    stage.wait(10)
    who = stage.begin(timeout_ms=1000)
    second = Producer(who.id, 1)
    at = [stage.state.updated_ms - stage.time_ms]
    steps: list[Callable[[], object]] = [
        lambda: stage.init(who),
        lambda: stage.add(second, A),
        lambda: stage.end(second),
        stage.finish,
        lambda: stage.add(second, A),
        lambda: stage.wait(100_000),
        stage.finish,
        stage.init,
    ]
    for step in steps:
        stage.wait(10)
        step()
        at.append(stage.state.updated_ms - stage.time_ms)
    assert at == [0] * 9


def test_a_zombie_cannot_abort_the_transaction_of_its_successor() -> None:
    stage = Stage()
    zombie = stage.begin()
    new = stage.begin()
    stage.add(new, A)
    assert stage.init(zombie) is FENCED
    assert stage.label == "Ongoing"


# The end --------------------------------------------------------------------------------------------------------------


def test_before_version_2_only_the_same_end_may_be_repeated() -> None:
    """Trap 24."""
    for is_commit in (True, False):
        with case(f"{is_commit=}"):
            stage = Stage()
            who = stage.begin()
            assert stage.end(who, is_commit=is_commit) is INVALID
            stage.add(who, A)
            stage.end(who, is_commit=is_commit)
            stage.finish()
            written = len(stage.log)
            assert stage.end(who, is_commit=is_commit) == who
            assert stage.end(who, is_commit=not is_commit) is INVALID
            assert len(stage.log) == written


def test_with_version_2_each_transaction_has_an_epoch_and_a_late_end_is_refused() -> None:
    """Trap 25: only the epoch tells a late request from one of the next transaction."""
    for is_commit in (True, False):
        with case(f"{is_commit=}"):
            stage = Stage()
            first = stage.begin()
            stage.add(first, A, version=V2)
            second = Producer(first.id, 1)
            assert stage.end(first, is_commit=is_commit, version=V2) == second
            (order,) = stage.orders()
            assert (order.producer, order.client_version) == (second, TRANSACTION_VERSION_2)
            stage.mark(A)
            # A retry has the old epoch. It gets the same answer, and the other direction is refused.
            assert stage.end(first, is_commit=is_commit, version=V2) == second
            assert stage.end(Producer(77, first.epoch), is_commit=is_commit, version=V2) is UNKNOWN
            assert stage.end(first, is_commit=not is_commit, version=V2) is INVALID
            stage.add(second, B, version=V2)
            assert stage.end(first, is_commit=is_commit, version=V2) is FENCED
            assert stage.label == "Ongoing"


def test_a_producer_that_lost_the_answer_to_its_end_may_begin_anew() -> None:
    """It names the epoch before, and gets the one that EndTxn gave to it."""
    stage = Stage()
    who = stage.begin()
    stage.add(who, A, version=V2)
    stage.end(who, version=V2)
    stage.finish()
    assert stage.init(who) == Producer(who.id, 1)


def test_a_late_end_of_version_2_is_no_retry_of_a_transaction_of_version_1() -> None:
    stage = Stage()
    stage.failover()
    who = stage.begin(timeout_ms=1000)
    stage.add(who, A)
    stage.wait(10_000)
    stage.finish()
    assert stage.label == "CompleteAbort"
    assert stage.end(who, is_commit=False, version=V2) is FENCED


def test_with_version_2_a_producer_may_abort_nothing_but_not_commit_nothing() -> None:
    """Trap 29: the abort of nothing must not fence its own producer."""
    stage = Stage()
    who = stage.begin()
    assert stage.end(who, version=V2) is INVALID
    for epoch in (1, 2):
        with case(f"{epoch=}"):
            before, who = who, Producer(1000, epoch)
            # The second one is a retry.
            assert [stage.end(before, is_commit=False, version=V2) for _ in range(2)] == [who, who]
            assert (stage.label, stage.state.started_ms) == ("CompleteAbort", stage.time_ms)
    assert stage.add(who, A, version=V2) is ErrorCode.NONE


def test_with_version_2_the_last_epoch_is_followed_by_a_new_id() -> None:
    stage = Stage()
    last_but_one = Producer(7, EPOCH_GIVEN_MAX - 1)
    stage.put(Transaction(*last_but_one, 60_000, TransactionState.EMPTY, 0))
    stage.add(last_but_one, A, version=V2)
    assert stage.end(last_but_one, version=V2) == Producer(7, EPOCH_GIVEN_MAX)
    stage = Stage()
    last = Producer(7, EPOCH_GIVEN_MAX)
    stage.put(Transaction(*last, 60_000, TransactionState.EMPTY, 0))
    stage.add(last, A, version=V2)
    new = Producer(1000, 0)
    assert stage.end(last, version=V2) == new
    (order,) = stage.orders()
    assert order.producer == Producer(7, EPOCH_MAX)
    # The producer may use its new id at once. It waits for the markers of the old one.
    assert stage.add(new, B, version=V2) is None
    stage.mark(A)
    assert stage.answers["request 3"] is ErrorCode.NONE
    stage.end(new, version=V2)
    stage.finish()
    assert stage.state.producer == Producer(1000, 1)


def test_a_retry_after_the_last_epoch_gets_the_new_id_even_after_a_failover() -> None:
    stage = Stage()
    last = Producer(7, EPOCH_GIVEN_MAX)
    stage.put(Transaction(*last, 60_000, TransactionState.EMPTY, 0))
    stage.add(last, A, version=V2)
    stage.end(last, version=V2)
    stage.failover()
    stage.finish()
    assert stage.end(last, version=V2) == Producer(1000, 0)
    assert stage.end(last, is_commit=False, version=V2) is INVALID


def test_a_fenced_transaction_at_the_last_epoch_ends_at_the_largest_one() -> None:
    """Trap 28: the epoch rises once, and does not overflow."""
    stage = Stage()
    last = Producer(7, EPOCH_GIVEN_MAX)
    stage.put(Transaction(*last, 1000, TransactionState.EMPTY, 0))
    stage.add(last, A, version=V2)
    stage.failover()
    stage.wait(10_000)
    (order,) = stage.orders()
    assert order.producer == Producer(7, EPOCH_MAX)
    stage.mark(A)
    # Its producer must not go on with the largest epoch, which could not be fenced. Nor may a stranger that invents it.
    assert stage.end(last, is_commit=False, version=V2) is FENCED
    largest = Producer(7, EPOCH_MAX)
    assert [stage.end(largest, is_commit=False, version=V2), stage.add(largest, A, version=V2)] == [FENCED, FENCED]
    assert stage.init() == Producer(1000, 0)


# While markers are written --------------------------------------------------------------------------------------------


def test_requests_wait_for_the_markers_and_are_then_decided_in_their_order() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    stage.end(who)
    assert stage.add(who, B) is None
    ended = stage.send_end(who, is_commit=False)
    assert stage.answers[ended] is None
    stage.finish()
    assert stage.answers["request 4"] is ErrorCode.NONE
    assert stage.answers[ended] == who
    assert stage.label == "PrepareAbort"


def test_a_request_that_waits_too_long_is_refused_as_concurrent() -> None:
    for parked_ms_max in (PARKED_MS_MAX, BROKER_PARKED_MS_MAX):
        with case(f"{parked_ms_max=}"):
            stage = Stage()
            who = stage.begin()
            stage.add(who, A)
            stage.end(who)
            assert stage.add(who, B, parked_ms_max=parked_ms_max) is None
            assert stage.verify(who, A) is ErrorCode.CONCURRENT_TRANSACTIONS
            stage.wait(parked_ms_max - 1)
            assert stage.answers["request 4"] is None
            assert stage.shard.deadline_ms() == stage.time_ms + 1
            stage.wait(1)
            assert stage.answers["request 4"] is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_requests_of_other_ids_go_on_waiting() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    stage.end(who)
    stage.put(Transaction(7, 3, 60_000, TransactionState.PREPARE_COMMIT, 0, frozenset({B})), "other")
    assert stage.init() is stage.init(transactional_id="other") is None
    stage.mark(A)
    assert (stage.answers["request 4"], stage.answers["request 5"]) == (Producer(who.id, 1), None)
    stage.perform(stage.shard.on_marked("other", [B], stage.time_ms))
    assert stage.answers["request 5"] == Producer(7, 4)


def test_the_epoch_of_an_end_is_checked_before_the_markers_up_to_version_4() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    stage.end(who)
    assert stage.end(Producer(who.id, 9)) is FENCED
    assert stage.end(Producer(who.id, 9), version=V2) is None


def test_verification_tells_which_partitions_are_in_the_transaction() -> None:
    """KIP-890, part 1."""
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    assert stage.verify(who, A, B) == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}


# If the log refuses ---------------------------------------------------------------------------------------------------


def test_a_step_that_the_log_refuses_changes_nothing() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    before = stage.state
    stage.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
    for name, answer in {"add": stage.add(who, B), "end": stage.end(who), "init": stage.init()}.items():
        with case(f"{name=}"):
            assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state == before
    assert stage.shard.deadline_ms() is None


def test_a_completion_that_the_log_refuses_is_written_later() -> None:
    stage = Stage()
    who = stage.begin()
    stage.add(who, A)
    stage.end(who)
    (order,) = stage.orders()
    stage.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.add(who, B) is None
    stage.wait(PARKED_MS_MAX - 1)
    stage.mark(*order.partitions)
    assert stage.label == "PrepareCommit"
    # The request that waits is not granted more time.
    assert stage.shard.deadline_ms() == stage.time_ms + 1
    stage.wait(1)
    assert stage.answers["request 4"] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.shard.deadline_ms() == stage.time_ms + 499
    stage.wait(499)
    # The log still refuses the record, so there is a third attempt.
    assert stage.shard.deadline_ms() == stage.time_ms + 500
    stage.refuses = None
    stage.wait(500)
    assert stage.label == "CompleteCommit"
    assert stage.shard.deadline_ms() is None


# Recovery and time ----------------------------------------------------------------------------------------------------


def test_a_new_coordinator_goes_on_in_every_state() -> None:
    for is_commit in (True, False):
        for version in (V1, V2):
            for steps in range(4):
                with case(f"{is_commit=}, {version=}, {steps=}"):
                    stage = Stage()
                    who = stage.begin()
                    if steps >= 1:
                        stage.add(who, A, B, version=version)
                    if steps >= 2:
                        stage.end(who, is_commit=is_commit, version=version)
                        (before,) = stage.orders()
                        stage.mark(A)
                    if steps >= 3:
                        stage.mark(B)
                    live = stage.state
                    stage.failover()
                    assert stage.state == live._replace(last_epoch=-1)
                    # The new coordinator does not know which markers are written. It orders all of them again.
                    assert stage.orders() == ([before] if steps == 2 else [])


def test_a_transaction_is_aborted_when_its_timeout_is_over_and_its_producer_is_fenced() -> None:
    for version in (V1, V2):
        with case(f"{version=}"):
            stage = Stage()
            stage.failover()
            who = stage.begin(timeout_ms=10_000)
            stage.add(who, A, version=version)
            stage.wait(10_000)
            assert stage.label == "Ongoing"
            stage.wait(10_000)
            (order,) = stage.orders()
            assert (order.producer, order.is_commit) == (Producer(who.id, 1), False)
            stage.finish()
            stage.mark(A)
            assert stage.label == "CompleteAbort"
            assert stage.add(who, B, version=version) is FENCED
            assert stage.end(who, version=version) is (INVALID if version == V2 else FENCED)


def test_an_id_expires_when_it_is_not_used_unless_its_transaction_is_open() -> None:
    day_ms = 24 * 3600 * 1000
    stage = Stage()
    stage.failover()
    who = stage.begin(timeout_ms=900_000)
    stage.begin(transactional_id="other")
    stage.time_ms += 7 * day_ms
    stage.add(who, A)
    stage.perform(stage.shard.on_time(stage.time_ms))
    assert [name for name, _state in stage.shard.transactions.items()] == ["copier"]
    assert stage.log[-1][1] is None
    stage.wait(3600_000)
    stage.finish()
    stage.mark(A)
    stage.wait(7 * day_ms)
    assert len(stage.shard.transactions) == 0
    stage.failover()
    assert len(stage.shard.transactions) == 0


def test_an_id_expires_only_after_the_end_of_its_transaction_however_long_that_takes() -> None:
    stage = Stage(expiration_ms=1000, remove_interval_ms=1)
    stage.failover()
    who = stage.begin()
    stage.add(who, A)
    stage.wait(2000)
    assert stage.label == "Ongoing"
    stage.end(who)
    stage.wait(2000)
    assert stage.label == "PrepareCommit"
    stage.finish()
    stage.wait(999)
    assert stage.label == "CompleteCommit"
    stage.wait(1)
    assert len(stage.shard.transactions) == 0


def test_the_coordinator_asks_to_be_woken_for_each_of_its_checks() -> None:
    stage = Stage(abort_interval_ms=3000, remove_interval_ms=5000)
    stage.failover()
    loaded_ms = stage.time_ms
    for due_ms in (3000, 5000, 6000, 9000, 10_000):
        with case(due_ms):
            assert stage.shard.deadline_ms() == loaded_ms + due_ms
            stage.wait(loaded_ms + due_ms - stage.time_ms)
