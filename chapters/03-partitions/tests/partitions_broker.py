"""A broker without a server, on a disk in memory: frames go in by a call, and answers come back as messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minibroker.log.batch import BatchBuilder
from minibroker.log.compression import Compression
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import Endpoint, Image
from minibroker.metadata.records import MetadataRecord
from minibroker.metadata.topic_commands import CreateTopics, DeleteTopics, NewTopic, TopicReference
from minibroker.partitions.describe import Describe, api_versions
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.list_offsets import ListOffsets
from minibroker.partitions.logs import DeleteRecords
from minibroker.partitions.produce import Produce
from minibroker.partitions.producer_ids import InitProducerId
from minibroker.partitions.registry import Deferred, Registry, Reply, Session
from minibroker.partitions.store import METADATA, Store
from minibroker.partitions.waiting import Turn, Waiting
from minibroker.partitions.without_groups import WithoutGroups
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.directory import DataDirectory
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request, read_response_header
from minibroker.wire.schema import Part, Request, Response, decode_whole
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

NOW_MS = 1_700_000_000_000
TICKS_MS = 5_000
"""The time of the monotonic clock."""
NODE_ID = 1


@dataclass(frozen=True)
class Write(Command[None]):
    """Write these records without any check."""

    list: Sequence[MetadataRecord]

    def run(self, image: Image, records: Records) -> None:
        records.add(self.list)

    def refuse(self, code: ErrorCode, message: str) -> None:
        raise AssertionError(message)


class MemoryBroker:
    """The handlers of a broker around a store and an authority. `ask` is what a client does."""

    more_checkpoints: Sequence[str] = ()

    def __init__(
        self, files: MemoryFiles | None = None, *, fetch_bytes_max: int = 55 * 1024**2, **settings: str
    ) -> None:
        self.files = files or MemoryFiles()
        self.config = NodeConfig({name.replace("_", "."): value for name, value in settings.items()})
        self.waiting: Waiting[Response] = Waiting()
        self.turns: list[Turn] = []
        self.waiting.on_turn = lambda _parked, turn: self.turns.append(turn)
        self.data = DataDirectory(self.files, "data", more_checkpoints=self.more_checkpoints)
        log = self.data.open_log(METADATA, METADATA_LOG_CONFIG)
        self.authority = Voter(log, cluster_id="in-memory", clock=lambda: NOW_MS)
        self.authority.propose(
            RegisterBroker(
                broker_id=NODE_ID,
                endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
                incarnation_id=bytes(range(16)),
            )
        )
        self.store = self.make_store()
        self.store.start(self.authority.image, removed_topics=self.authority.removed_topics)
        self.authority.subscribe(self.store.follow)
        self.registry = Registry()
        add = self.registry.add
        add(ApiKey.PRODUCE, Produce(self.store), advertised_from=0)
        add(ApiKey.FETCH, Fetch(self.store, bytes_max=fetch_bytes_max, clock=lambda: TICKS_MS))
        add(ApiKey.LIST_OFFSETS, ListOffsets(self.store))
        add(ApiKey.API_VERSIONS, api_versions(self.registry, self.authority))
        add(ApiKey.INIT_PRODUCER_ID, InitProducerId(self.authority, NODE_ID))
        add(ApiKey.DELETE_RECORDS, DeleteRecords(self.store))
        describe = Describe(
            self.authority, create=self.create_all, is_auto_creating=lambda: self.config.auto_create_topics_enable
        )
        add(ApiKey.METADATA, describe.metadata)
        add(ApiKey.DESCRIBE_CLUSTER, describe.cluster)
        without_groups = WithoutGroups(lambda: self.authority.image)
        add(ApiKey.FIND_COORDINATOR, without_groups.find_coordinator)
        add(ApiKey.OFFSET_FETCH, without_groups.offset_fetch)
        self._topic_ids = len(self.authority.image.topics)

    def make_store(self, **more: Any) -> Store:
        return Store(
            self.data,
            self.files,
            node_id=NODE_ID,
            topic_config=lambda image, topic: TopicConfig.of(
                image.configs, topic, self.config.with_dynamic(image.configs)
            ),
            wake=self.waiting.wake,
            **more,
        )

    # Several nodes, as far as the metadata know -----------------------------------------------------------------------

    def register(self, node_id: int, *, is_fenced: bool = False) -> None:
        endpoints = (Endpoint("PLAINTEXT", f"host-{node_id}", 9092),)
        incarnation_id = (1000 * node_id + is_fenced).to_bytes(16, "big")
        self.authority.propose(RegisterBroker(node_id, endpoints, incarnation_id, is_fenced=is_fenced))

    def change(self, topic: str, index: int, **values: Any) -> None:
        """Change a partition, as the controller of chapter 05 does."""
        topic_id = self.authority.image.topics[topic].topic_id
        self.authority.propose(Write([PartitionChangeRecord(topic_id=topic_id, partition_id=index, **values)]))

    # Topics -----------------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, *, replicas: Sequence[int] | None = None, **configs: str) -> None:
        self._topic_ids += 1
        topic = NewTopic(
            name,
            self._topic_ids.to_bytes(16, "big"),
            -1 if replicas else partitions,
            assignments=[(index, list(replicas)) for index in range(partitions)] if replicas else (),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        (created,) = self.authority.propose(CreateTopics([topic], self.config)).result
        assert created.code == 0, created.message

    def create_all(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        made = [NewTopic(name, (1000 + number).to_bytes(16, "big")) for number, name in enumerate(names)]
        results = self.authority.propose(CreateTopics(made, self.config)).result
        return {it.name: it.code for it in results if it.code}

    def delete(self, name: str) -> None:
        (deleted,) = self.authority.propose(DeleteTopics([TopicReference(name=name)])).result
        assert deleted.code == 0, deleted.message

    # Requests ---------------------------------------------------------------------------------------------------------

    def dispatch(self, request: Request, version: int | None = None, *, now_ms: int = NOW_MS) -> Reply | Deferred:
        api = APIS[request.schema.key or 0]
        version = api.max_version if version is None else version
        parts = frame_request(request, version=version, correlation_id=7, client_id="test")
        frame = memoryview(bytearray(joined(parts)))[4:]
        outcome = self.registry.dispatch(frame, now_ms=now_ms, session=Session("test"))
        self.waiting.settle()
        return outcome

    def ask(self, request: Request, version: int | None = None, *, now_ms: int = NOW_MS) -> Any:
        """The response to a request that is answered at once, as a client decodes it, or None with acks=0."""
        outcome = self.dispatch(request, version, now_ms=now_ms)
        assert isinstance(outcome, Reply), "the answer waits"
        return answered(request, outcome, version)

    def wait_for(self, request: Request, version: int | None = None) -> list[Any]:
        """Park a request that must wait. Its response is added to the list that is returned."""
        outcome = self.dispatch(request, version)
        assert isinstance(outcome, Deferred), "the answer does not wait"
        responses: list[Any] = []
        self.waiting.park(
            outcome.wait,
            lambda response: responses.append(answered(request, outcome.reply(response), version)),
            now_ms=0,
        )
        return responses

    def take_turns(self, count: int) -> None:
        """Let the requests that are handled in slices go on, as a server does in each turn of its event loop."""
        for _ in range(count):
            for turn in self.turns:
                turn.is_due = True
                self.waiting.wake(turn)
            self.waiting.settle()

    # Records ----------------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        records: "bytes | bytearray | None",
        *,
        partition: int = 0,
        acks: int = -1,
        version: int | None = None,
        now_ms: int = NOW_MS,
    ) -> Any:
        """What Produce answers for one partition, or None with acks=0."""
        response = self.ask(produce_request(topic, records, partition=partition, acks=acks), version, now_ms=now_ms)
        return None if response is None else response.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int = 0, *, partition: int = 0, version: int = 12, **wanted: int) -> Any:
        """What Fetch answers for one partition."""
        return self.ask(fetch_request(topic, offset, partition=partition, **wanted), version).responses[0].partitions[0]

    def end(self, topic: str, partition: int = 0) -> int:
        return self.store.partition(topic, partition).log_end_offset


def produce_request(
    topic: str, records: "bytes | bytearray | None", *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 2**31 - 1,
    partition_max_bytes: int = 2**20,
    max_wait_ms: int = 0,
    **more: Any,
) -> FetchRequest:
    epochs = {name: more.pop(name) for name in ("current_leader_epoch", "last_fetched_epoch") if name in more}
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **epochs)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
        **more,
    )


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp: int = NOW_MS,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_control: bool = False,
) -> bytearray:
    """A batch as a producer sends it."""
    builder = BatchBuilder(
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_control=is_control,
    )
    for number, value in enumerate(values or (b"v",)):
        builder.append(timestamp=timestamp + number, key=key, value=value)
    return builder.build()


def answered(request: Request, reply: Reply, version: int | None) -> Any:
    api = APIS[request.schema.key or 0]
    version = api.max_version if version is None else version
    if not reply.parts:
        return None
    frame = memoryview(joined(reply.parts))[4:]
    correlation_id, position = read_response_header(api.key, version, frame)
    assert correlation_id == 7
    return decode_whole(api.response, frame, position, version)


def joined(parts: Sequence[Part]) -> bytes:
    return b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)
