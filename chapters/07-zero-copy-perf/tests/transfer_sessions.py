"""A broker in memory with fetch sessions, and a client that keeps one."""

from itertools import count
from typing import Any

from partitions_broker import MemoryBroker

from minibroker.log.batch import batches
from minibroker.partitions.registry import Call, Handler
from minibroker.transfer.session_fetch import FULL_EPOCH, SessionFetch
from minibroker.transfer.sessions import next_epoch
from minibroker.wire.apis import ApiKey
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from minibroker.wire.uuids import NO_UUID

BY_NAME, BY_ID = 12, 13


class NoLimit:
    """No client is limited, unless the test sets a delay."""

    def __init__(self) -> None:
        self.next_delay_ms = 0
        self.asked_bytes_max: int | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.next_delay_ms or self.asked_bytes_max)

    def bytes_max(self, call: Call[FetchRequest]) -> int | None:
        return self.asked_bytes_max

    def delay_ms(self, call: Call[FetchRequest], response: FetchResponse) -> int:
        delay_ms, self.next_delay_ms = self.next_delay_ms, 0
        return delay_ms


class SessionBroker(MemoryBroker):
    """The broker of chapter 03 with the filter of chapter 07. `reads` counts the partitions that were read."""

    def __init__(self, *, slots: int = 1000, **settings: Any) -> None:
        super().__init__(**settings)
        self.now_ms = 0
        self.limit = NoLimit()
        self.reads = 0
        self.sessions = SessionFetch(
            self.waiting,
            slots=slots,
            new_id=count(101).__next__,
            clock=lambda: self.now_ms,
            topic_name=self.store.topic_name,
            bytes_max=55 * 1024**2,
            limit=self.limit,
        )
        self.registry.guard(self._guard)

    def _guard(self, key: ApiKey, handler: Handler) -> Handler:
        def counted(call: Call[FetchRequest]) -> Any:
            self.reads += sum(len(it.partitions) for it in call.request.topics)
            return handler(call)

        return (lambda call: self.sessions(call, counted)) if key is ApiKey.FETCH else handler

    def topic_id(self, topic: str) -> bytes:
        return self.authority.image.topics[topic].topic_id


class SessionClient:
    """A consumer of partitions `(topic, index)`, which follows its session as KIP-227 says."""

    def __init__(self, broker: SessionBroker, *, version: int = BY_ID, follower_id: int = -1) -> None:
        self.broker = broker
        self.follower_id = follower_id
        self.version = version
        self.session_id, self.epoch = 0, FULL_EPOCH
        self.offsets: dict[tuple[str, int], int] = {}
        self._sent: dict[tuple[str, int], int] = {}
        self._forgotten: list[tuple[str, int]] = []

    def assign(self, *partitions: tuple[str, int], offset: int = 0) -> None:
        self.offsets |= dict.fromkeys(partitions, offset)

    def forget(self, *partitions: tuple[str, int]) -> None:
        for it in partitions:
            del self.offsets[it]
            if self._sent.pop(it, None) is not None:
                self._forgotten.append(it)

    def request(self, **more: Any) -> FetchRequest:
        """The next request: all partitions, or those whose offset the broker does not know."""
        is_full = self.epoch == FULL_EPOCH
        changed = {it: at for it, at in self.offsets.items() if is_full or self._sent.get(it) != at}
        forgotten = [] if is_full else [it for it in self._forgotten if it not in self.offsets]
        self._sent |= changed
        self._forgotten = []
        return FetchRequest(
            **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 2**31 - 1} | more,
            replica_id=self.follower_id,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(**self._name(topic), partitions=[wanted(i, at)]) for (topic, i), at in changed.items()],
            forgotten_topics_data=[ForgottenTopic(**self._name(topic), partitions=[i]) for topic, i in forgotten],
        )

    def _name(self, topic: str) -> dict[str, Any]:
        return {"topic": topic} if self.version < BY_ID else {"topic_id": self.broker.topic_id(topic)}

    def fetch(self, **more: Any) -> dict[tuple[str, int], Any]:
        """Fetch once, and go on after the records that came. The answer by partition."""
        return self.take(self.broker.ask(self.request(**more), self.version))

    def wait(self, **more: Any) -> list[Any]:
        """Fetch, and wait. The response is added to the list that is returned."""
        request = self.request(**{"max_wait_ms": 60_000, "min_bytes": 1} | more)
        return self.broker.wait_for(request, self.version)

    def take(self, response: Any) -> dict[tuple[str, int], Any]:
        assert response.error_code == 0, response.error_code
        if not (self.epoch == FULL_EPOCH and response.throttle_time_ms):
            self.session_id = response.session_id
            self.epoch = next_epoch(self.epoch) if response.session_id else FULL_EPOCH
        found = {
            (self._topic_of(topic), it.partition_index): it for topic in response.responses for it in topic.partitions
        }
        for name, data in found.items():
            if data.records and name in self.offsets:
                self.offsets[name] = list(batches(data.records))[-1].header.next_offset
        return found

    def _topic_of(self, topic: Any) -> str:
        if topic.topic_id == NO_UUID:
            return str(topic.topic)
        return self.broker.authority.image.topic_names.get(topic.topic_id, "")


def wanted(index: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=2**20)
