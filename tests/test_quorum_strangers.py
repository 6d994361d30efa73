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
from strangers import EPOCH_LAST, FAR, REFUSED, codes_of, forged

from minibroker.clients.admin import describe_quorum
from minibroker.clients.blocking import Client
from minibroker.quorum.translating import request_of
from minibroker.raft.messages import Vote
from minibroker.raft.voters import VoterKey
from minibroker.replicas.login import NodeCredentials, name_of
from minibroker.replicas.peers import client_id_of
from minibroker.replicas.secret import read_secret
from minibroker.wire.codes import ErrorCode

pytest_plugins = ["clusters_fixtures"]

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


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


def test_a_vote_in_the_last_epoch_does_not_end_all_elections(quorum: QuorumCluster) -> None:
    """Even a node that has logged in cannot force it on the others. Once they had taken it, none could be elected."""
    decides = quorum.controller()
    other = decides % 3 + 1
    with Client(quorum.bootstrap) as client:
        cluster_id = client.metadata([]).cluster_id or ""
    password = NodeCredentials(read_secret(str(quorum.secret))).password(name_of(other))
    for number in quorum.nodes.keys() - {other}:
        vote = request_of(Vote(EPOCH_LAST, VoterKey(other), VoterKey(number), FAR, FAR), cluster_id)
        with case(f"node {number} is asked"), RawNode(quorum[number], other, password) as node:
            assert codes_of(node, vote, client_id_of(other)) == {ErrorCode.INVALID_REQUEST}
    quorum[decides].kill()
    new = quorum.controller(among=quorum.others(decides))
    state = quorum.quorum(at=new)
    assert state is not None
    assert state.leader_epoch < FAR


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
