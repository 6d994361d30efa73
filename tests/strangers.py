"""A stranger: a client that acts for nodes and sends bytes that no client should send. None of it may have an effect.

Everything goes over a bare socket. `forged` lists the requests in which a node speaks for itself; a `Stranger` sends
them to one node again and again, and hostile frames in between, while others work with the cluster.
"""

import contextlib

from brokers import Broker
from clients_raw import (
    PRODUCE,
    Batch,
    Connection,
    header,
    i16,
    i32,
    produce,
    record,
    records,
    string,
)

from minibroker.bench.background import Background
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.registry import Call, Session
from minibroker.quorum.envelope import wrap
from minibroker.quorum.translating import fetch_request, request_of, snapshot_request
from minibroker.raft.messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, SnapshotId, Vote
from minibroker.raft.voters import VoterKey
from minibroker.replication.tables.allocate_producer_ids import AllocateProducerIdsRequest
from minibroker.replication.tables.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionAlteration,
    TopicAlteration,
)
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, Listener
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader, frame_request, read_response_header
from minibroker.wire.schema import Request, codes_in, decode_whole
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from minibroker.wire.uuids import NO_UUID

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
FAR = 10**9
"""An epoch or an offset beyond every real one: a request that names it would take effect."""
EPOCH_LAST = 2**31 - 1
"""There is no epoch after it: a voter that took it could never stand for election again."""


def codes_of(connection: Connection, request: Request, client_id: str) -> set[int]:
    """Every code in the answer that is not 0."""
    assert request.schema.key is not None
    api = APIS[request.schema.key]
    version = api.max_version
    (frame,) = frame_request(request, version=version, correlation_id=1, client_id=client_id)
    connection.send_bytes(bytes(frame))  # type: ignore[arg-type]
    answer = connection.receive()
    assert answer is not None, "the broker hung up instead of answering"
    _correlation_id, position = read_response_header(api.key, version, memoryview(answer))
    response = decode_whole(api.response, memoryview(answer), position, version)
    return {int(code) for code in codes_in(response)} - {ErrorCode.NONE}


# Forged requests


def fetch_of(topic_id: bytes, replica_id: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=FAR, partition_max_bytes=1)
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id),
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
    )


def forged(cluster_id: str, topic: str, topic_id: bytes, *, node: int, to: int) -> dict[str, Request]:
    """Every request in which a node speaks for itself, as if node `node` had sent it."""
    me, voter = VoterKey(node), VoterKey(to)
    isr = [BrokerState(broker_id=node, broker_epoch=-1)]
    change = PartitionAlteration(partition_index=0, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=isr)
    listener = Listener(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0)
    snapshot = FetchSnapshot(1, me, SnapshotId(0, 0), 0)
    return {
        "a fetch": fetch_of(topic_id, node),
        "a fetch of the metadata": fetch_of(CLUSTER_METADATA_TOPIC_ID, node),
        "a voter's fetch": fetch_request(Fetch(1, me, FAR, 1), cluster_id, wait_ms=0, bytes_max=1),
        "a fetch of a snapshot": snapshot_request(snapshot, cluster_id, bytes_max=1),
        "a vote": request_of(Vote(FAR, me, voter, FAR, FAR, False), cluster_id),
        "a vote in the last epoch": request_of(Vote(EPOCH_LAST, me, voter, FAR, FAR, False), cluster_id),
        "a new leader": request_of(BeginQuorumEpoch(FAR, node, voter), cluster_id),
        "a leader that resigns": request_of(EndQuorumEpoch(FAR, node, ()), cluster_id),
        "an in-sync set": AlterPartitionRequest(
            broker_id=node, broker_epoch=-1, topics=[TopicAlteration(topic_id=topic_id, partitions=[change])]
        ),
        "a registration": BrokerRegistrationRequest(
            broker_id=node, cluster_id=cluster_id, incarnation_id=b"x" * 16, listeners=[listener]
        ),
        "a heartbeat": BrokerHeartbeatRequest(
            broker_id=node, broker_epoch=-1, current_metadata_offset=0, want_fence=True, want_shut_down=True
        ),
        "producer ids": AllocateProducerIdsRequest(broker_id=node, broker_epoch=-1),
        "an envelope": envelope_of(topic),
    }


def envelope_of(topic: str) -> Request:
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=NO_UUID)], timeout_ms=5000)
    inner = RequestHeader(ApiKey.DELETE_TOPICS, 6, 1, "client")
    return wrap(Call(delete, 6, inner, 0, Session("127.0.0.1:1")))


# Hostile frames


def hostile_frames(topic: str) -> dict[str, bytes]:
    """What ends a connection, with its length field. The batches that lie would be records of this topic."""
    whole = produce(topic, Batch(record()).encode())
    unknown = header(999, 0)
    counts = header(PRODUCE, 7) + string(None) + i16(-1) + i32(0) + i32(2**31 - 1)
    return {
        "a negative length": i32(-1),
        "a huge length": i32(2**31 - 1) + bytes(100),
        "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "an unknown request": i32(len(unknown)) + unknown,
        "an endless array": i32(len(counts)) + counts,
        "half a batch": i32(len(whole) - 20) + whole[:-20],
    }


LYING = {
    "more records than there are": Batch(records(2), count=2_000),
    "a wrong checksum": Batch(record(), crc=1),
    "a batch of a transaction's end": Batch(record(), attributes=0x20),
}
"""Batches that are refused with an error code."""


class Stranger(Background):
    """Molests one node until it is told to end. `complaints` lists what was not refused."""

    def __init__(self, broker: Broker, topic: str, requests: dict[str, Request], *, client_id: str) -> None:
        super().__init__()
        self.complaints: list[str] = []
        self.sent = 0
        self._broker = broker
        self._topic = topic
        self._requests = requests
        self._client_id = client_id

    def run(self) -> None:
        """Forge, lie and stall in turns. A node that is too busy to answer, or down, is asked again later."""
        while not self.is_over.is_set():
            # The first part of a large request, the rest of which never comes.
            with contextlib.suppress(OSError), Connection(self._broker) as stalled:
                stalled.send_bytes(i32(50_000_000) + header(PRODUCE, 7) + bytes(100_000))
                self._attack()
            self.is_over.wait(0.01)

    def _attack(self) -> None:
        try:
            self._forge()
            self._lie()
            self._break()
        except AssertionError as error:
            self.complaints.append(str(error))

    def _check(self, what: str, is_refused: bool) -> None:
        self.sent += 1
        if not is_refused:
            self.complaints.append(f"node at {self._broker.address} did not refuse {what}")

    def _forge(self) -> None:
        with Connection(self._broker) as connection:
            for name, request in self._requests.items():
                found = codes_of(connection, request, self._client_id)
                self._check(f"{name}: {found}", found == {REFUSED})

    def _lie(self) -> None:
        with Connection(self._broker) as connection:
            for name, batch in LYING.items():
                self._check(name, connection.produce(produce(self._topic, batch.encode())).code != ErrorCode.NONE)

    def _break(self) -> None:
        for name, frame in hostile_frames(self._topic).items():
            with Connection(self._broker) as connection:
                connection.send_bytes(frame)
                self._check(name, connection.is_hung_up())
