"""The smallest broker that stock clients accept: five APIs, one thread, and a log of chapter 02 for each partition.

    python -m minibroker.partitions.small DATA HOST:PORT

A connection is a coroutine that reads a frame, has it answered and sends the answer, again and again. Each API has a
handler: a method that gets a request and returns a response. A topic is created when a client asks for it, and is
known by its directories. The broker of this chapter, `node`, does the same for many clients, and refuses much more.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from minibroker.log.disk import OSFiles
from minibroker.log.errors import ExpectedError, LogError
from minibroker.log.interfaces import Files, FileSlice
from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.names import check_topic_name
from minibroker.partitions.errors import Disconnect, refusal
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.errors import UnsupportedApi
from minibroker.wire.frames import LENGTH_SIZE, frame_length
from minibroker.wire.headers import RequestHeader, frame_response, read_request_header
from minibroker.wire.schema import Part, Request, Response
from minibroker.wire.tables import api_versions, fetch, list_offsets, metadata, produce

NODE_ID = 1
FRAME_BYTES_MAX = 100 * 1024 * 1024
# In these versions a topic has a name and no id. Produce is announced from version 0 on, although that version has no
# table: librdkafka compresses only if version 0 is announced, and never sends it.
VERSIONS = {
    ApiKey.PRODUCE: (0, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (1, 9),
    ApiKey.API_VERSIONS: (0, 4),
}


class SmallBroker:
    """A broker of one node. Every topic has `partition_count` partitions."""

    def __init__(self, files: Files, path: str, *, partition_count: int = 1) -> None:
        self._partition_count = partition_count
        self._data = DataDirectory(files, path)
        self._logs = {partition: self._data.open_log(partition) for partition in self._data.partitions()}
        self._appended = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._host, self._port = "", 0
        self._handlers: dict[int, Callable[[Any], Response | None]] = {
            ApiKey.PRODUCE: self.on_produce,
            ApiKey.FETCH: self.on_fetch,
            ApiKey.LIST_OFFSETS: self.on_list_offsets,
            ApiKey.METADATA: self.on_metadata,
            ApiKey.API_VERSIONS: self.on_api_versions,
        }

    # Connections ------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 chooses a free one. Return the address as HOST:PORT, which Metadata names, too."""
        self._server = await asyncio.start_server(self._serve, host, port)
        self._host, self._port = self._server.sockets[0].getsockname()[:2]
        return f"{self._host}:{self._port}"

    async def stop(self) -> None:
        """Close the port, the connections and the logs. A fetch that waits gets no answer."""
        assert self._server is not None, "the broker was not started"
        self._server.close()
        for writer in self._connections:
            writer.close()
        self._data.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while True:
                length = frame_length(await reader.readexactly(LENGTH_SIZE), FRAME_BYTES_MAX)
                # The log stamps a batch where it is, so the frame must be writable.
                frame = memoryview(bytearray(await reader.readexactly(length)))
                for part in await self.answer(frame):
                    writer.write(part.read() if isinstance(part, FileSlice) else part)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, ExpectedError):
            pass  # the client has gone, or its bytes make no sense: this connection ends, and no other
        finally:
            self._connections.discard(writer)
            writer.close()

    async def answer(self, frame: memoryview) -> list[Part]:
        """Answer a request, given without its length. The answer begins with its length. With acks=0 it is empty."""
        try:
            header, position = read_request_header(frame)
        except UnsupportedApi as error:
            return self._refuse_version(error.header)
        version = header.api_version
        oldest, newest = VERSIONS.get(ApiKey(header.api_key), (0, -1))
        if not oldest <= version <= newest:
            return self._refuse_version(header)
        request, _end = APIS[header.api_key].request.decode(frame, position, version)
        response = await self._respond(header.api_key, request)
        if response is None:
            return []
        return frame_response(response, version=version, correlation_id=header.correlation_id)

    def _refuse_version(self, header: RequestHeader) -> list[Part]:
        # Only ApiVersions has an answer that every client understands: version 0 (KIP-511).
        if header.api_key != ApiKey.API_VERSIONS:
            raise Disconnect(f"API {header.api_key} version {header.api_version} is not served")
        response = api_versions.ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ranges([ApiKey.API_VERSIONS])
        )
        return frame_response(response, version=0, correlation_id=header.correlation_id)

    async def _respond(self, key: int, request: Request) -> Response | None:
        """Call the handler. A fetch that finds too little, but no error, is tried again after each append."""
        response = self._handlers[key](request)
        if not isinstance(request, fetch.FetchRequest):
            return response
        with suppress(TimeoutError):
            async with asyncio.timeout(request.max_wait_ms / 1000):
                while isinstance(response, fetch.FetchResponse) and _finds_too_little(response, request):
                    await self._appended.wait()
                    response = self.on_fetch(request)
        return response

    # Handlers ---------------------------------------------------------------------------------------------------------

    def on_api_versions(self, _request: api_versions.ApiVersionsRequest) -> api_versions.ApiVersionsResponse:
        """The APIs of this broker and their versions."""
        return api_versions.ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=_ranges(VERSIONS))

    def on_metadata(self, request: metadata.MetadataRequest) -> metadata.MetadataResponse:
        """This node, and the topics of the request; null is all topics. A topic that is not there is created."""
        names = self._topics() if request.topics is None else [topic.name or "" for topic in request.topics]
        broker = metadata.MetadataResponseBroker(node_id=NODE_ID, host=self._host, port=self._port)
        topics = [self._described(name, request.allow_auto_topic_creation) for name in names]
        return metadata.MetadataResponse(brokers=[broker], controller_id=NODE_ID, topics=topics)

    def _described(self, name: str, may_create: bool) -> metadata.MetadataResponseTopic:
        try:
            check_topic_name(name)
        except InvalidTopicName:
            return metadata.MetadataResponseTopic(
                error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name, partitions=[]
            )
        if name not in self._topics():
            if not may_create:
                return metadata.MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[]
                )
            for index in range(self._partition_count):
                partition = TopicPartition(name, index)
                self._logs[partition] = self._data.open_log(partition)
        numbers = sorted(it.partition for it in self._logs if it.topic == name)
        return metadata.MetadataResponseTopic(
            error_code=ErrorCode.NONE, name=name, partitions=[_led_here(it) for it in numbers]
        )

    def _topics(self) -> list[str]:
        return sorted({partition.topic for partition in self._logs})

    def on_produce(self, request: produce.ProduceRequest) -> produce.ProduceResponse | None:
        """Append each batch, and wake the fetches that wait. With acks=0 the producer wants no answer."""
        responses = [
            produce.TopicProduceResponse(
                name=topic.name, partition_responses=[self._append(topic.name, it) for it in topic.partition_data]
            )
            for topic in request.topic_data
        ]
        self._appended.set()
        self._appended = asyncio.Event()
        return None if request.acks == 0 else produce.ProduceResponse(responses=responses)

    def _append(self, topic: str, data: produce.PartitionProduceData) -> produce.PartitionProduceResponse:
        answer = produce.PartitionProduceResponse(index=data.index, error_code=ErrorCode.NONE, base_offset=-1)
        log = self._logs.get(TopicPartition(topic, data.index))
        try:
            if log is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not isinstance(data.records, memoryview):
                answer.error_code = ErrorCode.INVALID_RECORD
            else:
                answer.base_offset = log.append(data.records)
        except LogError as error:
            answer.error_code = refusal(error).code
        return answer

    def on_list_offsets(self, request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        """The offset of a time in each partition."""
        topics = [
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[self._located(topic.name, it.partition_index, it.timestamp) for it in topic.partitions],
            )
            for topic in request.topics
        ]
        return list_offsets.ListOffsetsResponse(topics=topics)

    def _located(self, topic: str, index: int, timestamp: int) -> list_offsets.ListOffsetsPartitionResponse:
        log = self._logs.get(TopicPartition(topic, index))
        answer = list_offsets.ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.NONE)
        if log is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif timestamp in (list_offsets.EARLIEST_TIMESTAMP, list_offsets.LATEST_TIMESTAMP):
            answer.offset = log.log_start_offset if timestamp == list_offsets.EARLIEST_TIMESTAMP else log.log_end_offset
        else:
            record = log.find_max_timestamp() if timestamp == list_offsets.MAX_TIMESTAMP else log.find_time(timestamp)
            if record is not None:
                answer.offset, answer.timestamp = record.offset, record.timestamp
        return answer

    def on_fetch(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        """Slices of the log files. Only the first partition with records may exceed the request's limit."""
        response = fetch.FetchResponse(responses=[])
        for topic in request.topics:
            answer = fetch.FetchableTopicResponse(topic=topic.topic, partitions=[])
            response.responses.append(answer)
            for it in topic.partitions:
                log = self._logs.get(TopicPartition(topic.topic, it.partition))
                bytes_left = request.max_bytes - _bytes_in(response)
                answer.partitions.append(_read(log, it, bytes_left, may_exceed=bytes_left == request.max_bytes))
        return response


def _read(
    log: SegmentedLog | None, wanted: fetch.FetchPartition, bytes_left: int, *, may_exceed: bool
) -> fetch.PartitionData:
    answer = fetch.PartitionData(
        partition_index=wanted.partition, error_code=ErrorCode.NONE, high_watermark=-1, records=b""
    )
    if log is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    answer.high_watermark = answer.last_stable_offset = log.log_end_offset
    answer.log_start_offset = log.log_start_offset
    try:
        found = log.read(wanted.fetch_offset, bytes_max=max(min(wanted.partition_max_bytes, bytes_left), 0))
    except LogError as error:
        answer.error_code = refusal(error).code
        return answer
    if may_exceed or found.count <= bytes_left:
        answer.records = found
    return answer


def _bytes_in(response: fetch.FetchResponse) -> int:
    slices = (it.records for topic in response.responses for it in topic.partitions)
    return sum(it.count for it in slices if isinstance(it, FileSlice))


def _finds_too_little(found: fetch.FetchResponse, request: fetch.FetchRequest) -> bool:
    codes = {it.error_code for topic in found.responses for it in topic.partitions}
    return codes <= {ErrorCode.NONE} and _bytes_in(found) < request.min_bytes


def _led_here(index: int) -> metadata.MetadataResponsePartition:
    return metadata.MetadataResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=index,
        leader_id=NODE_ID,
        leader_epoch=0,
        replica_nodes=[NODE_ID],
        isr_nodes=[NODE_ID],
    )


def _ranges(keys: Iterable[ApiKey]) -> list[api_versions.ApiVersion]:
    return [
        api_versions.ApiVersion(api_key=key, min_version=VERSIONS[key][0], max_version=VERSIONS[key][1]) for key in keys
    ]


async def run(path: str, address: str) -> None:
    """Start the broker, print `ready: HOST:PORT`, and serve until the process is killed."""
    host, _colon, port = address.rpartition(":")
    print(f"ready: {await SmallBroker(OSFiles(), path).start(host, int(port))}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
