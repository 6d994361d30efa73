"""What the handlers need: the partition of a group, the answers that refuse, the matching of names, FindCoordinator."""

from functools import partial

import pytest
from cases import case
from wire_messages import sample

from minibroker.coordinators import access
from minibroker.coordinators.answering import or_disconnect
from minibroker.coordinators.internal_topics import offsets_topic, replication_factor_of, rules_for
from minibroker.coordinators.placing import java_hash, partition_of
from minibroker.coordinators.refusing import refusal
from minibroker.coordinators.regexes import compiled
from minibroker.coordinators.tickets import Ticket, answer_of
from minibroker.coordinators.transaction_refusing import transaction_refusal
from minibroker.groups.keys import GroupSettings
from minibroker.groups.regexes import InvalidRegex
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.log.batch import BatchBuilder
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import BrokerImage, Image
from minibroker.partitions.admission import Origin, incoming
from minibroker.partitions.errors import Disconnect, Refused
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.waiting import Wait
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import codes_in
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic


def test_the_partition_of_a_group_is_javas_hash_of_its_id() -> None:
    hashes = {
        "": 0,
        "hello": 99162322,
        "polygenelubricants": -(2**31),
        "größe": 98762257,
        "😀": 1772899,
    }
    for text, value in hashes.items():
        with case(text):
            assert java_hash(text) == value
    assert partition_of("hello", 50) == 99162322 % 50
    assert partition_of("polygenelubricants", 50) == 0


def test_every_answer_of_the_coordinators_can_refuse_in_every_version() -> None:
    for key in access.ROWS.keys() - {ApiKey.FIND_COORDINATOR, ApiKey.TXN_OFFSET_COMMIT}:
        api, refuse = APIS[key], transaction_refusal if key in access.TRANSACTION_ROWS else refusal
        for version in range(api.min_version, api.max_version + 1):
            with case(api.name, version):
                request, _end = api.request.decode(memoryview(sample(api.request, version).encode(version)), 0, version)
                response = refuse(request, version, ErrorCode.NOT_COORDINATOR)
                found, _end = api.response.decode(memoryview(response.encode(version)), 0, version)
                assert ErrorCode.NOT_COORDINATOR in codes_in(found)


def test_a_heartbeat_is_answered_with_no_error_while_groups_are_loaded() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert set(codes_in(refusal(request, 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))) == {ErrorCode.NONE}


def test_a_client_that_asks_another_node_for_offsets_is_disconnected() -> None:
    """librdkafka would never ask again (librdkafka #5586). It may have to wait before it is sent away."""
    topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    request = OffsetFetchRequest(topics=topics, groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    for version in (1, 7, 8):
        for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            with case(version, code.name):
                ticket = Ticket(partial(refusal, request, version))
                waiting = or_disconnect(answer_of(ticket))
                assert isinstance(waiting, Wait)
                assert waiting.attempt() is None
                ticket.complete(code)
                with pytest.raises(Disconnect):
                    waiting.attempt()
                with pytest.raises(Disconnect):
                    or_disconnect(answer_of(ticket))
    ticket = Ticket(partial(refusal, request, 8))
    ticket.complete(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert or_disconnect(answer_of(ticket)) is ticket.response


def test_a_regular_expression_matches_whole_names_in_linear_time() -> None:
    matches = compiled("orders-.*")
    assert matches("orders-eu")
    assert not matches("my-orders-eu")
    assert not matches("orders")
    # With Python's own engine this would take longer than the universe is old.
    assert not compiled("(a+)+b")("a" * 2000)


def test_what_is_no_regular_expression_is_refused_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    for pattern in ("(", "a{2000}{2000}", "(?=lookahead)", r"(a)\1"):
        with case(pattern), pytest.raises(InvalidRegex):
            compiled(pattern)
    assert capfd.readouterr().err == ""


def _batch() -> memoryview:
    builder = BatchBuilder()
    builder.append(timestamp=0, key=b"k", value=b"v")
    return memoryview(builder.build())


def test_clients_may_not_write_to_internal_topics() -> None:
    config, producers = TopicConfig({"cleanup.policy": "compact"}), ProducerStates(MemoryFiles(), "p")
    for topic in ("__consumer_offsets", "__transaction_state"):
        with case(topic):
            rules = rules_for(TopicPartition(topic, 0))(config, producers)
            with pytest.raises(Refused) as refused:
                rules[0](incoming(_batch(), 0))
            assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
            for rule in rules:
                assert rule(incoming(_batch(), 0, Origin.COORDINATOR)) is None
    for rule in rules_for(TopicPartition("orders", 0))(config, producers):
        assert rule(incoming(_batch(), 0)) is None


def _image(broker_count: int) -> Image:
    return Image(
        brokers={
            it: BrokerImage(it, "h", 1, None, is_fenced=it > 1, incarnation_id=bytes(16), epoch=it)
            for it in range(1, broker_count + 1)
        }
    )


def test_the_offsets_topic_has_as_many_replicas_as_the_cluster_allows_or_as_configured() -> None:
    three_voters = {"controller.quorum.voters": "1@a:1,2@b:1,3@c:1", "listeners": "PLAINTEXT://127.0.0.1:1"}
    cases = [
        ({}, 1, 1),
        ({}, 2, 2),
        ({}, 5, 3),
        (three_voters, 1, 3),
        ({"offsets.topic.replication.factor": "3"}, 1, 3),
        ({"offsets.topic.replication.factor": "1"}, 5, 1),
    ]
    for settings, brokers, factor in cases:
        with case(settings, brokers):
            config = NodeConfig({"node.id": "1"} | settings)
            assert replication_factor_of(config, _image(brokers)) == factor
    topic = offsets_topic(GroupSettings.of(NodeConfig()), 3)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("__consumer_offsets", 50, 3)
    assert {it.name: it.value for it in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
