"""Requests that act for a node, sent by others: by a client, under a node's client id, and by another node.

The requests go over a bare socket, and the login is a stock client's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka.conn import ScramAuthenticator
from brokers import Broker, eventually, unique
from cases import case
from clients_raw import FETCH, PRODUCE, Batch, Connection, array, data32, header, i8, i16, i32, i64, record, string
from clients_stock import bounds
from clusters import QuorumCluster

from minibroker.clients.admin import describe_quorum
from minibroker.clients.blocking import Client
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.registry import Call, Session
from minibroker.quorum.envelope import wrap
from minibroker.quorum.translating import fetch_request, request_of, snapshot_request
from minibroker.raft.messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, SnapshotId, Vote
from minibroker.raft.voters import VoterKey
from minibroker.replicas.login import NodeCredentials, name_of
from minibroker.replicas.peers import client_id_of
from minibroker.replicas.secret import read_secret
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

pytest_plugins = ["clusters_fixtures"]

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
FAR = 10**9
"""An epoch or an offset beyond every real one: a request that names it would take effect."""


# Callers


class RawNode(Connection):
    """A bare socket that has logged in as a node, with a stock client's SCRAM."""

    def __init__(self, broker: Broker, number: int, password: str) -> None:
        super().__init__(broker)
        self.ask(header(SASL_HANDSHAKE, 1) + string("SCRAM-SHA-256"))
        theirs = ScramAuthenticator(
            loop=None,
            sasl_plain_username=name_of(number),
            sasl_plain_password=password,
            sasl_mechanism="SCRAM-SHA-256",
        ).authenticator_scram()
        message, _expects_answer = next(theirs)
        message, _expects_answer = theirs.send(self._authenticate(message))
        # It ends once it has checked the broker's signature.
        with pytest.raises(StopIteration):
            theirs.send(self._authenticate(message))

    def _authenticate(self, message: bytes) -> bytes:
        answer = self.ask(header(SASL_AUTHENTICATE, 1) + data32(message))
        code, _text, length = answer.take("h"), answer.string(), answer.take("i")
        assert code == ErrorCode.NONE
        return answer.data[answer.position : answer.position + length]


@contextmanager
def callers(quorum: QuorumCluster, at: int, *, acts_for: int) -> Iterator[dict[str, tuple[Connection, str]]]:
    """Connections that may not act for a node, and their client ids."""
    another = next(it for it in quorum.nodes if it != acts_for)
    password = NodeCredentials(read_secret(str(quorum.secret))).password(name_of(another))
    with Connection(quorum[at]) as one, Connection(quorum[at]) as other, RawNode(quorum[at], another, password) as node:
        yield {
            "a client": (one, "client"),
            "a client with the client id of the node": (other, client_id_of(acts_for)),
            "another node": (node, client_id_of(acts_for)),
        }


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


# Requests


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


# Claims


def seen(quorum: QuorumCluster, topic: str) -> tuple[Any, ...]:
    """What a forged request would change: the quorum, the brokers, and the partition."""
    with Client(quorum.bootstrap) as client:
        state, metadata = describe_quorum(client), client.metadata([topic])
    voters = {(it.node_id, it.directory_id) for it in state.voters}
    ends = {it.log_end_offset < FAR for it in (*state.voters, *state.observers)}
    brokers = {(it.node_id, it.host, it.port) for it in metadata.brokers}
    (partition,) = metadata.topics[0].partitions
    return (
        *(state.leader_id, state.leader_epoch, voters, ends, brokers),
        *(partition.leader_id, partition.leader_epoch, set(partition.isr_nodes), bounds(quorum.bootstrap, topic)),
    )


def test_only_a_node_acts_for_itself(quorum: QuorumCluster) -> None:
    decides = quorum.controller()
    victim = decides % 3 + 1
    topic = quorum.create(unique("forged"), [[decides, victim]])
    quorum.await_isr(topic, decides, victim)
    with Client(quorum.bootstrap) as client:
        metadata = client.metadata([topic])
    requests = forged(metadata.cluster_id or "", topic, metadata.topics[0].topic_id, node=victim, to=decides)
    before = seen(quorum, topic)
    with callers(quorum, decides, acts_for=victim) as found:
        for caller, (connection, client_id) in found.items():
            for name, request in requests.items():
                # Any node may forward the request of a client.
                if (caller, name) == ("another node", "an envelope"):
                    continue
                with case(f"{name}, from {caller}"):
                    assert codes_of(connection, request, client_id) == {REFUSED}
            # The connection still serves a client.
            assert connection.is_answered()
    assert seen(quorum, topic) == before
    assert "but is not logged in as a node" in quorum[decides].log()


def follower_fetch(topic: str, offset: int, *, replica_id: int) -> bytes:
    """A follower's fetch in version 11, which has no broker epoch."""
    where = i32(0) + i32(-1) + i64(offset) + i64(0) + i32(1 << 20)
    start = i32(replica_id) + i32(0) + i32(1) + i32(1 << 20) + i8(0) + i32(0) + i32(-1)
    return header(FETCH, 11) + start + array([string(topic) + array([where])]) + array([]) + string("")


def test_a_client_cannot_confirm_records_that_no_follower_has(quorum: QuorumCluster) -> None:
    """With both followers paused, a client's fetches once moved the high watermark: acks=all was a lie."""
    leads = quorum.controller()
    followers = [it for it in quorum.nodes if it != leads]
    topic = quorum.create(unique("lie"), [[leads, *followers]], min_insync_replicas=2)
    quorum.await_isr(topic, leads, *followers)
    partitions = array([i32(0) + data32(Batch(record(b"value")).encode())])
    write = header(PRODUCE, 7) + string(None) + i16(-1) + i32(1000) + array([string(topic) + partitions])
    for number in followers:
        quorum[number].pause()
    try:
        with Connection(quorum[leads]) as producer, Connection(quorum[leads]) as stranger:
            producer.send(write)
            for number in followers:
                code, partition_code, _records = stranger.fetch(follower_fetch(topic, 1, replica_id=number))
                assert (code, partition_code) == (ErrorCode.NONE, REFUSED)
            assert bounds(quorum.asked_at(leads), topic) == (0, 0)
            # The write times out. A leader that the controller may have deposed by then closes the connection.
            answer = producer.receive()
            assert answer is None or ErrorCode.REQUEST_TIMED_OUT.to_bytes(2, "big") in answer
    finally:
        for number in followers:
            quorum[number].resume()
    # The real followers confirm it.
    eventually(lambda: bounds(quorum.bootstrap, topic) == (0, 1), "the record is committed")
