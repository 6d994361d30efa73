"""The filter before Fetch that knows sessions: it asks chapter 03's handler only for partitions that may have news.

    request ──▶ session: update positions ──▶ partitions that are due ──▶ Fetch of chapter 03 ──▶ news only ──▶ answer
                                                   └ none, or too few bytes: wait until one of the partitions changes

The handler does not know of sessions. It gets a request that names all partitions to read, and has no session. A
consumer's request waits here, with its session as the only key. So a request of a thousand idle partitions takes one
entry in the table of waiting requests, and not a thousand.

A quota may forbid an answer (`Limit`). Then an empty answer is sent, and the session counts nothing of the forbidden
one as told.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Protocol

from minibroker.partitions.access import follower_of
from minibroker.partitions.errors import Refused
from minibroker.partitions.fetch import NO_SESSION, PARTITIONS_PER_TURN, TOPIC_IDS_FROM_VERSION, has_enough
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transfer.session_cache import SessionCache
from minibroker.transfer.sessions import CachedPartition, FetchSession, next_epoch, topics_of
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse, FetchTopic

FULL_EPOCH = 0
FINAL_EPOCH = -1


class Limit(Protocol):
    """Limits how many bytes a client may fetch."""

    @property
    def is_set(self) -> bool:
        """Whether any client is limited."""

    def bytes_max(self, call: Call[FetchRequest]) -> int | None:
        """The most bytes of one answer that the limit can ever allow; None without a limit."""

    def delay_ms(self, call: Call[FetchRequest], response: FetchResponse) -> int:
        """Count an answer. If the limit is exceeded, do not count it, and return how long the client must wait."""


class SessionFetch:
    """Fetch with sessions. It is called with the handler of Fetch, which knows no sessions."""

    def __init__(
        self,
        waiting: Waiting[Response],
        *,
        slots: int,
        new_id: Callable[[], int],
        clock: Callable[[], int],
        topic_name: Callable[[bytes], str],
        bytes_max: int,
        limit: Limit,
    ) -> None:
        """`topic_name` finds the name of a topic by its id. `bytes_max` is fetch.max.bytes."""
        self._waiting = waiting
        self._clock = clock
        self._topic_name = topic_name
        self._bytes_max = bytes_max
        self._limit = limit
        self.cache = SessionCache(slots, new_id, on_closed=self._on_closed)

    def __call__(self, call: Call[FetchRequest], fetch: Handler) -> Answer:
        """Answer a fetch, in a session or without one."""
        request = call.request
        if request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION and not self._limit.is_set:
            return fetch(call)
        is_follower = follower_of(request) is not None
        limited = call if is_follower else self._limited(call)
        if request.session_epoch not in (FULL_EPOCH, FINAL_EPOCH):
            return self._incremental(limited, fetch)
        # A full fetch ends the session that it names. Epoch 0 begins another one.
        if request.session_id != NO_SESSION:
            self.cache.remove(request.session_id)
        if request.session_epoch == FULL_EPOCH:
            return self._then(limited, fetch(_outside(limited)), partial(self._begin, limited, is_follower))
        return self._then(limited, fetch(_outside(limited)), lambda response: response)

    # Limits -----------------------------------------------------------------------------------------------------------

    def _limited(self, call: Call[FetchRequest]) -> Call[FetchRequest]:
        bytes_max = self._limit.bytes_max(call)
        if bytes_max is None:
            return call
        request = copy.copy(call.request)
        request.max_bytes = min(request.max_bytes, bytes_max)
        request.min_bytes = min(request.min_bytes, request.max_bytes)
        return call.about(request)

    def _then(
        self, call: Call[FetchRequest], answer: Answer, finish: Callable[[FetchResponse], FetchResponse]
    ) -> Answer:
        """Finish a response now or when it is there, unless the limit forbids it."""

        def finished(response: Response) -> Response:
            assert isinstance(response, FetchResponse)
            delay_ms = self.delay_ms(call, response)
            return finish(response) if not delay_ms else _empty(NO_SESSION, throttle_time_ms=delay_ms)

        if isinstance(answer, Wait):
            return answer.then(finished)
        return None if answer is None else finished(answer)

    def delay_ms(self, call: Call[FetchRequest], response: FetchResponse) -> int:
        """How long a client must wait instead of getting this answer. A follower has no limit."""
        return 0 if follower_of(call.request) is not None else self._limit.delay_ms(call, response)

    # A new session ----------------------------------------------------------------------------------------------------

    def _begin(self, call: Call[FetchRequest], is_privileged: bool, response: FetchResponse) -> FetchResponse:
        """Begin a session with the partitions of a full fetch. All are due, because time has passed since the read."""
        topics, now_ms = call.request.topics, self._clock()

        def make(session_id: int) -> FetchSession:
            session = FetchSession(
                session_id,
                is_privileged=is_privileged,
                uses_topic_ids=call.version >= TOPIC_IDS_FROM_VERSION,
                now_ms=now_ms,
                wake=self._waiting.wake,
            )
            session.update(call.request)
            session.on_told(response.responses)
            if not is_privileged:
                self.watch(session)
            return session

        size = sum(len(topic.partitions) for topic in topics)
        if size:
            response.session_id = self.cache.begin(make, is_privileged=is_privileged, size=size, now_ms=now_ms)
        return response

    # An incremental fetch ---------------------------------------------------------------------------------------------

    def _incremental(self, call: Call[FetchRequest], fetch: Handler) -> Answer:
        request = call.request
        session = self.cache.get(request.session_id)
        refusal = _refusal(session, call)
        if session is None or refusal is not None:
            return _empty(NO_SESSION, error_code=refusal)
        self._unwatch(session.update(request))
        if not len(session):
            self.cache.remove(session.id)
            return self._then(call, fetch(_outside(call)), lambda response: response)
        self.cache.touch(session, self._clock())
        session.epoch = next_epoch(session.epoch)
        if session.is_privileged:
            expected = session.epoch
            everything = _outside(call, topics_of(session))
            return self._then(call, fetch(everything), lambda it: self.told(session, expected, it))
        return _Incremental(self, session, call, fetch).answer()

    def told(self, session: FetchSession, expected_epoch: int, response: FetchResponse) -> FetchResponse:
        """Leave out what is no news, and remember that the client is told of the rest."""
        if session.epoch != expected_epoch:
            return _empty(session.id, error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        response.responses = session.news(response.responses)
        response.session_id = session.id
        session.on_told(response.responses)
        return response

    # Watching ---------------------------------------------------------------------------------------------------------

    def watch(self, partitions: "FetchSession | list[CachedPartition]") -> None:
        """Watch partitions that are not watched yet. A topic whose id is unknown here may become known later."""
        for it in partitions:
            if it.name is None:
                name = self._name_of(it)
                if name is not None:
                    it.name = TopicPartition(name, it.wanted.partition)
                    self._waiting.watch(it.name, it.on_changed)

    def _name_of(self, partition: CachedPartition) -> str | None:
        name, topic_id, _index = partition.key
        try:
            return name or self._topic_name(topic_id)
        except Refused:
            return None

    def _unwatch(self, partitions: "FetchSession | list[CachedPartition]") -> None:
        for it in partitions:
            if it.name is not None:
                self._waiting.unwatch(it.name, it.on_changed)
                it.name = None

    def _on_closed(self, session: FetchSession) -> None:
        self._unwatch(session)
        # A request that waits is answered, because it would not hear of changes any more.
        self._waiting.wake(session)

    @property
    def bytes_max(self) -> int:
        """The broker's limit for one answer."""
        return self._bytes_max


class _Incremental:
    """A consumer's request in a session, which may wait."""

    def __init__(self, owner: SessionFetch, session: FetchSession, call: Call[FetchRequest], fetch: Handler) -> None:
        request = call.request
        self._owner = owner
        self._session = session
        self._call = call
        self._fetch = fetch
        self._epoch = session.epoch
        self._bytes_min = min(request.min_bytes, request.max_bytes, owner.bytes_max)

    def answer(self) -> Answer:
        response = self._attempt()
        max_wait_ms = self._call.request.max_wait_ms
        if response is not None or max_wait_ms <= 0:
            return response or self._expire()
        return Wait((self._session,), max_wait_ms, attempt=self._attempt, expire=self._expire)

    def _attempt(self) -> Response | None:
        is_more = self._session.due_count > PARTITIONS_PER_TURN
        response = self._read()
        # If very many partitions are due, the client asks again for the rest. Others have their turn in between.
        is_enough = is_more or self._session.is_closed or has_enough(response, self._bytes_min)
        return self._finish(response) if is_enough else None

    def _expire(self) -> Response:
        return self._finish(self._read())

    def _read(self) -> FetchResponse:
        """The news of the partitions that are due."""
        due = self._session.due(PARTITIONS_PER_TURN)
        if not due:
            return _empty(self._session.id)
        if not self._session.is_closed:
            self._owner.watch(due)
        response = self._fetch(_outside(self._call, topics_of(due), max_wait_ms=0))
        assert isinstance(response, FetchResponse), "a short fetch that may not wait is answered at once"
        response.responses = self._session.news(response.responses)
        return response

    def _finish(self, response: FetchResponse) -> Response:
        delay_ms = self._owner.delay_ms(self._call, response)
        if delay_ms:
            return _empty(self._session.id, throttle_time_ms=delay_ms)
        return self._owner.told(self._session, self._epoch, response)


def _refusal(session: FetchSession | None, call: Call[FetchRequest]) -> ErrorCode | None:
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != call.request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.uses_topic_ids != (call.version >= TOPIC_IDS_FROM_VERSION):
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    return None


def _outside(
    call: Call[FetchRequest], topics: list[FetchTopic] | None = None, *, max_wait_ms: int | None = None
) -> Call[FetchRequest]:
    """The same call outside of any session, for these topics."""
    request = copy.copy(call.request)
    request.session_id, request.session_epoch, request.forgotten_topics_data = NO_SESSION, FINAL_EPOCH, []
    if topics is not None:
        request.topics = topics
    if max_wait_ms is not None:
        request.max_wait_ms = max_wait_ms
    return call.about(request)


def _empty(session_id: int, *, error_code: int | None = None, throttle_time_ms: int = 0) -> FetchResponse:
    return FetchResponse(
        error_code=error_code or ErrorCode.NONE,
        session_id=session_id,
        throttle_time_ms=throttle_time_ms,
        responses=[],
    )
