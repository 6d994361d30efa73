"""Fetch sessions (KIP-227): both sides send only what has changed, and no record is missed."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from cases import case
from partitions_broker import batch
from transfer_sessions import BY_ID, BY_NAME, SessionBroker, SessionClient, wanted

from minibroker.partitions.fetch import READ_COMMITTED
from minibroker.partitions.partition import SoleReplica
from minibroker.partitions.waiting import Turn
from minibroker.transfer.session_cache import EVICTION_MS, SessionCache
from minibroker.transfer.sessions import FetchSession, next_epoch
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from minibroker.wire.tables.fetch import EpochEndOffset, FetchableTopicResponse, FetchRequest, FetchTopic, PartitionData

PARTITIONS = [("orders", index) for index in range(10)]


@pytest.fixture
def broker() -> SessionBroker:
    broker = SessionBroker()
    broker.create("orders", len(PARTITIONS))
    return broker


def in_session(broker: SessionBroker, version: int = BY_ID) -> SessionClient:
    """A client that has a session of all partitions, and nothing left to read."""
    client = SessionClient(broker, version=version)
    client.assign(*PARTITIONS)
    client.fetch()
    while client.fetch():
        pass
    return client


def test_a_full_fetch_begins_a_session_and_later_answers_have_only_news(broker: SessionBroker) -> None:
    broker.produce("orders", batch(b"first"), partition=3)
    for version in (BY_NAME, BY_ID):
        with case(f"version {version}"):
            client = SessionClient(broker, version=version)
            client.assign(*PARTITIONS)
            assert set(client.fetch()) == set(PARTITIONS)
            assert client.session_id
            assert client.fetch() == {}
            broker.produce("orders", batch(b"next"), partition=7)
            assert set(client.fetch()) == {("orders", 7)}
            assert client.fetch() == {}


def test_an_idle_partition_is_not_read(broker: SessionBroker) -> None:
    client = in_session(broker)
    broker.produce("orders", batch(b"x"), partition=7)
    broker.reads = 0
    client.fetch()
    client.fetch()
    client.fetch()
    # The records are read, and then the end of the log.
    assert broker.reads == 2


def test_a_request_that_waits_is_woken_by_any_partition_of_its_session(broker: SessionBroker) -> None:
    for index in (0, 9):
        with case(f"partition {index}"):
            client = in_session(broker)
            responses = client.wait()
            assert len(broker.waiting) == 1
            broker.produce("orders", batch(b"x"), partition=index)
            assert set(client.take(responses[0])) == {("orders", index)}
            assert len(broker.waiting) == 0


def test_a_wait_for_many_bytes_collects_them_over_partitions(broker: SessionBroker) -> None:
    client, size = in_session(broker), len(batch(b"x"))
    responses = client.wait(min_bytes=2 * size + 1)
    for index in range(3):
        assert responses == [], f"after {index} batches"
        broker.produce("orders", batch(b"x"), partition=index)
    assert set(client.take(responses[0])) == set(PARTITIONS[:3])


def test_a_wait_that_ends_without_records_still_tells_new_offsets(broker: SessionBroker) -> None:
    client = in_session(broker)
    broker.produce("orders", batch(b"a", b"b"), partition=4)
    client.fetch()
    assert client.fetch() == {}
    responses = client.wait()
    topic = DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=4, offset=1)])
    broker.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=100))
    assert responses == []
    broker.waiting.expire(60_000)
    (told,) = client.take(responses[0]).values()
    assert (told.log_start_offset, len(told.records)) == (1, 0)
    assert client.fetch() == {}


def test_a_partition_can_be_added_moved_and_forgotten(broker: SessionBroker) -> None:
    broker.create("more")
    client = in_session(broker)
    client.assign(("more", 0))
    assert set(client.fetch()) == {("more", 0)}
    broker.produce("more", batch(b"x"))
    broker.produce("orders", batch(b"x"), partition=5)
    client.forget(("more", 0))
    assert set(client.fetch()) == {("orders", 5)}
    # A reader that goes back gets the same records again.
    client.assign(("orders", 5))
    assert set(client.fetch()) == {("orders", 5)}
    assert client.fetch() == {}


def test_a_session_without_partitions_is_over(broker: SessionBroker) -> None:
    client = in_session(broker)
    client.forget(*PARTITIONS)
    response = broker.ask(client.request(), client.version)
    assert (response.error_code, response.session_id, response.responses) == (0, 0, [])
    assert len(broker.sessions.cache) == len(broker.waiting._watchers) == 0


def test_a_request_that_waits_in_a_session_that_is_evicted_is_answered(broker: SessionBroker) -> None:
    client = in_session(broker)
    responses = client.wait()
    broker.sessions.cache.remove(client.session_id)
    broker.waiting.settle()
    assert responses[0].responses == []
    assert len(broker.waiting._watchers) == 0


def test_an_error_is_repeated_until_it_is_over(broker: SessionBroker) -> None:
    client = in_session(broker, BY_NAME)
    client.assign(("later", 0))
    for _ in range(2):
        (answer,) = client.fetch().values()
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create("later")
    (answer,) = client.fetch().values()
    assert answer.error_code == ErrorCode.NONE
    assert client.fetch() == {}


def test_a_waiting_client_hears_of_a_deleted_topic(broker: SessionBroker) -> None:
    client = in_session(broker)
    responses = client.wait()
    broker.delete("orders")
    broker.waiting.settle()
    codes = {it.error_code for topic in responses[0].responses for it in topic.partitions}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_ID}


def test_a_topic_id_that_becomes_known_later_is_followed(broker: SessionBroker) -> None:
    client = in_session(broker)
    request = client.request()
    future_id = (len(broker.authority.image.topics) + 1).to_bytes(16, "big")
    full = SessionClient(broker)
    full.assign(("orders", 0))
    request = full.request()
    request.topics[0].topic_id = future_id
    (topic,) = broker.ask(request, BY_ID).responses
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    session_id = next(reversed(broker.sessions.cache._sessions))
    broker.create("born")
    broker.produce("born", batch(b"x"))
    request.session_id, request.session_epoch, request.topics = session_id, 1, []
    (topic,) = broker.ask(request, BY_ID).responses
    assert topic.topic_id == future_id
    assert topic.partitions[0].records


def test_a_wrong_session_epoch_or_kind_of_name_is_refused(broker: SessionBroker) -> None:
    client = in_session(broker)
    request = client.request()
    for name, session_id, epoch, version, code in (
        ("unknown session", client.session_id + 1, client.epoch, BY_ID, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("an old epoch", client.session_id, client.epoch - 1, BY_ID, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("a later epoch", client.session_id, client.epoch + 1, BY_ID, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("names, not ids", client.session_id, client.epoch, BY_NAME, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        with case(name):
            request.session_id, request.session_epoch = session_id, epoch
            answer = broker.ask(request, version)
            assert (answer.error_code, answer.session_id, answer.responses) == (code, 0, [])
    # None of these requests has counted.
    request.session_id, request.session_epoch = client.session_id, client.epoch
    assert broker.ask(request, BY_ID).error_code == ErrorCode.NONE


def test_a_second_request_in_a_session_takes_the_place_of_one_that_waits(broker: SessionBroker) -> None:
    client = in_session(broker)
    waiting = client.wait()
    client.epoch = next_epoch(client.epoch)
    client.fetch()
    broker.produce("orders", batch(b"x"))
    assert waiting[0].error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert set(client.fetch()) == {("orders", 0)}


def test_a_full_fetch_ends_the_session_that_it_names(broker: SessionBroker) -> None:
    for epoch, sessions in ((0, 1), (-1, 0)):
        with case(f"epoch {epoch}"):
            client = in_session(broker)
            client.epoch = 0
            request = client.request()
            request.session_epoch = epoch
            response = broker.ask(request, BY_ID)
            assert len(broker.sessions.cache) == sessions
            assert (response.session_id != 0) == bool(sessions)
            assert response.session_id != client.session_id
            broker.sessions.cache.remove(response.session_id)


def test_an_answer_that_a_quota_forbids_counts_nothing_as_told(broker: SessionBroker) -> None:
    client = in_session(broker)
    broker.produce("orders", batch(b"x"), partition=2)
    broker.limit.next_delay_ms = 700
    response = broker.ask(client.request(), BY_ID)
    assert (response.throttle_time_ms, response.responses, response.session_id) == (700, [], client.session_id)
    client.take(response)
    assert set(client.fetch()) == {("orders", 2)}
    # A full fetch is answered without a session, and the client sends another full fetch.
    other = SessionClient(broker)
    other.assign(*PARTITIONS)
    broker.limit.next_delay_ms = 700
    assert other.fetch() == {}
    assert other.session_id == 0
    assert set(other.fetch()) == set(PARTITIONS)


def test_many_due_partitions_are_answered_over_several_requests() -> None:
    broker = SessionBroker()
    names = [("wide", index) for index in range(1200)]
    broker.create("wide", len(names))
    client = SessionClient(broker)
    client.assign(*names)
    client.session_id, client.epoch = 0, 0
    responses = client.wait(max_wait_ms=0)
    (turn,) = (key for key in broker.waiting._by_key if isinstance(key, Turn))
    while not responses:
        turn.is_due = True
        broker.waiting.wake(turn)
        broker.waiting.settle()
    client.take(responses[0])
    broker.produce("wide", batch(b"x"), partition=1199)
    rounds = 0
    while not client.fetch(max_wait_ms=60_000, min_bytes=1):
        rounds += 1
    assert rounds <= 3
    assert client.offsets["wide", 1199] == 1


def test_many_partitions_in_error_do_not_keep_others_from_their_turn() -> None:
    broker = SessionBroker()
    broker.create("orders")
    client = SessionClient(broker, version=BY_NAME)
    client.assign(("orders", 0))
    client.fetch()
    assert client.fetch() == {}
    client.assign(*(("missing", index) for index in range(600)))
    client.fetch()
    broker.produce("orders", batch(b"x"))
    for _ in range(3):
        client.fetch()
    assert client.offsets["orders", 0] == 1


def test_no_record_is_missed_whatever_the_order_of_events() -> None:
    for seed in range(30):
        with case(f"seed {seed}"):
            _play(Random(seed))


def _play(random: Random) -> None:
    """Random appends, seeks, forgotten partitions, lost answers and limits. The client must reach every log end."""
    broker = SessionBroker()
    broker.create("orders", 4)
    client = SessionClient(broker, version=random.choice((BY_NAME, BY_ID)))
    names = PARTITIONS[:4]
    client.assign(*names)
    for _ in range(60):
        action = random.randrange(6)
        name = random.choice(names)
        if action <= 1:
            broker.produce("orders", batch(b"x" * random.randrange(50)), partition=name[1])
        elif action == 2:
            client.fetch(max_bytes=random.choice((1, 100, 10_000)))
        elif action == 3 and name in client.offsets and len(client.offsets) > 1:
            client.forget(name)
        elif action == 4:
            client.assign(name, offset=random.randrange(broker.end(*name) + 1))
        elif random.random() < 0.5:
            broker.limit.next_delay_ms = 1
        else:
            # The answer is lost, so the client begins again.
            broker.ask(client.request(), client.version)
            client.session_id, client.epoch = 0, 0
    client.assign(*(it for it in names if it not in client.offsets))
    for _ in range(200):
        client.fetch(max_bytes=100)
    assert client.offsets == {it: broker.end(*it) for it in names}


def test_a_followers_fetch_reaches_every_partition_and_its_answer_has_only_news(
    broker: SessionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader measures by a follower's fetches how far the follower is, so none may be left out."""
    monkeypatch.setattr(SoleReplica, "check_follower", lambda _self, _reader: None)
    follower = SessionClient(broker, follower_id=2)
    follower.assign(*PARTITIONS)
    assert set(follower.fetch()) == set(PARTITIONS)
    for index in (3, 8):
        broker.reads = 0
        assert follower.fetch() == {}
        assert broker.reads == len(PARTITIONS)
        responses = follower.wait()
        broker.produce("orders", batch(b"x"), partition=index)
        assert set(follower.take(responses[0])) == {("orders", index)}
    assert broker.sessions.cache.get(follower.session_id).is_privileged  # type: ignore[union-attr]


def test_partitions_with_records_take_turns_in_a_followers_small_answers(
    broker: SessionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SoleReplica, "check_follower", lambda _self, _reader: None)
    follower = SessionClient(broker, follower_id=2)
    follower.assign(*PARTITIONS)
    follower.fetch()
    for index in (3, 8):
        for _ in range(2):
            broker.produce("orders", batch(b"x"), partition=index)
    found = [{name for name, it in follower.fetch(max_bytes=1).items() if it.records} for _ in range(4)]
    assert found == [{("orders", 3)}, {("orders", 8)}] * 2


# The news of one partition --------------------------------------------------------------------------------------------


class Told:
    """A session of one partition, whose reader is at offset 5."""

    def __init__(self) -> None:
        self.session = FetchSession(1, is_privileged=False, uses_topic_ids=False, now_ms=0)
        self.ask()

    def ask(self, isolation_level: int = 0) -> None:
        """A request of the client, which changes no offset after the first one."""
        topics = [] if len(self.session) else [FetchTopic(topic="orders", partitions=[wanted(0, 5)])]
        self.session.update(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics, isolation_level=isolation_level))

    def read(self, **changes: Any) -> bool:
        """Read the partition, and tell the client if there is news."""
        values: dict[str, Any] = {
            "error_code": 0,
            "high_watermark": 7,
            "last_stable_offset": 5,
            "log_start_offset": 1,
            "records": b"",
        }
        data = PartitionData(partition_index=0, **values | changes)
        news = self.session.news([FetchableTopicResponse(topic="orders", partitions=[data])])
        self.session.on_told(news)
        return bool(news)


def test_each_difference_from_what_the_reader_was_told_is_news() -> None:
    for name, changes, is_over in (
        ("records", {"records": b"x"}, True),
        ("an error", {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}, False),
        ("a high watermark", {"high_watermark": 8}, False),
        ("the start of the log", {"log_start_offset": 2}, False),
        ("a log that diverges", {"diverging_epoch": EpochEndOffset(epoch=3, end_offset=4)}, True),
        ("nothing", {}, True),
    ):
        with case(name):
            told = Told()
            assert told.read(), "the first answer"
            assert not told.read()
            assert told.read(**changes) == (name != "nothing")
            # What was different is told again when it is as before.
            assert told.read() != is_over


def test_a_partition_is_due_until_its_reader_is_where_its_isolation_level_ends() -> None:
    told = Told()
    told.ask(READ_COMMITTED)
    for isolation_level, due_count in ((READ_COMMITTED, 0), (READ_COMMITTED, 0), (0, 1), (0, 1), (READ_COMMITTED, 0)):
        told.ask(isolation_level)
        told.read()
        told.read()
        assert told.session.due_count == due_count
    # A reader that changes its isolation level may find records at once.
    told.ask(0)
    assert told.session.due_count == 1


# The cache ------------------------------------------------------------------------------------------------------------


class Cache:
    """A cache with sessions of given sizes, and a clock."""

    def __init__(self, slots: int) -> None:
        self.ids: Iterator[int] = iter(range(1, 10_000))
        self.closed: list[int] = []
        self.cache = SessionCache(slots, lambda: next(self.ids), on_closed=lambda it: self.closed.append(it.id))

    def begin(self, size: int, now_ms: int, *, is_follower: bool = False) -> int:
        def make(session_id: int) -> FetchSession:
            session = FetchSession(session_id, is_privileged=is_follower, uses_topic_ids=False, now_ms=now_ms)
            session._partitions = _partitions(size)
            return session

        return self.cache.begin(make, is_privileged=is_follower, size=size, now_ms=now_ms)

    def touch(self, number: int, now_ms: int, *, size: int | None = None) -> None:
        """Use a session, which may have another size since then."""
        session = self.cache.get(number)
        assert session is not None
        if size is not None:
            session._partitions = _partitions(size)
        self.cache.touch(session, now_ms)


def _partitions(size: int) -> Any:
    return {("", b"", index): None for index in range(size)}


def test_a_full_cache_keeps_young_sessions_and_evicts_the_one_that_was_not_used_for_two_minutes() -> None:
    it = Cache(slots=2)
    first, second = it.begin(5, 0), it.begin(5, 0)
    assert it.begin(100, EVICTION_MS) == 0
    it.touch(first, EVICTION_MS)
    assert it.begin(1, EVICTION_MS + 1)
    assert it.closed == [second]


def test_a_follower_takes_the_place_of_a_client_but_a_client_never_of_a_follower() -> None:
    it = Cache(slots=2)
    small, large = it.begin(1, 0), it.begin(2, 0)
    follower = it.begin(1, 1, is_follower=True)
    assert follower
    assert it.closed == [small]
    assert it.begin(1, 2, is_follower=True)
    assert it.closed == [small, large]
    assert it.begin(1000, 3) == 0
    assert it.begin(1000, 3, is_follower=True) == 0


def test_a_larger_session_takes_the_place_of_an_old_smaller_one() -> None:
    it = Cache(slots=2)
    ids = [it.begin(size, 0) for size in (5, 3)]
    later_ms = EVICTION_MS + 1
    for now_ms in (EVICTION_MS, later_ms):
        assert it.begin(100, now_ms - 1) == 0
        for number in ids:
            it.touch(number, now_ms)
    assert it.begin(3, later_ms) == 0
    assert it.begin(4, later_ms)
    assert it.closed == [ids[1]]
    assert it.cache.evictions == 1


def test_a_session_counts_with_the_size_that_it_had_last() -> None:
    it, later_ms = Cache(slots=2), EVICTION_MS + 1
    grown, other = it.begin(1, 0), it.begin(2, 0)
    for size in (1, 9):
        it.touch(grown, later_ms, size=size)
        it.touch(other, later_ms)
    assert it.begin(5, later_ms)
    assert it.closed == [other]
    assert it.cache.partitions == 14


def test_the_id_of_a_session_is_not_given_again() -> None:
    it = Cache(slots=2)
    it.ids = iter((7, 7, 8))
    assert [it.begin(1, 0), it.begin(1, 0)] == [7, 8]


def test_all_sessions_together_have_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.transfer.session_cache.PARTITIONS_MAX", 12)
    broker = SessionBroker()
    broker.create("orders", 10)
    first, second = SessionClient(broker), SessionClient(broker)
    for client, count in ((first, 10), (second, 2)):
        client.assign(*PARTITIONS[:count])
        assert len(client.fetch()) == count
        assert client.session_id
    # A session that grows too large is answered, and ends.
    second.assign(PARTITIONS[2])
    assert set(second.fetch()) == {PARTITIONS[2]}
    assert broker.sessions.cache.partitions == 10
    assert broker.ask(second.request(), BY_ID).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    third = SessionClient(broker)
    third.assign(*PARTITIONS[:3])
    assert len(third.fetch()) == 3
    assert third.session_id == 0
    first.forget(*PARTITIONS[5:])
    first.fetch()
    assert broker.sessions.cache.partitions == len(broker.waiting._watchers) == 5


def test_without_slots_there_are_no_sessions_and_every_fetch_is_answered() -> None:
    broker = SessionBroker(slots=0)
    broker.create("orders")
    client = SessionClient(broker)
    client.assign(("orders", 0))
    broker.produce("orders", batch(b"x"))
    assert client.fetch()
    assert (client.session_id, client.epoch) == (0, 0)
    assert client.fetch()


def test_epochs_wrap_around_to_one() -> None:
    assert next_epoch(1) == 2
    assert next_epoch(2**31 - 1) == 1
