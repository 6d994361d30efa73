"""What is known of the cluster, and what an error code does to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.addresses import Address
from minibroker.client.errors import InvalidAddress
from minibroker.clients.routing import Effect, LeaderHint, Node, Routes, effect_of, parse_addresses
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID = bytes(15) + b"\1"


def answer(*, leader: int = 1, epoch: int = 5, code: int = 0, topic_id: bytes = TOPIC_ID) -> MetadataResponse:
    partition = MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1, 2],
        isr_nodes=[1, 2],
        offline_replicas=[],
    )
    topic = MetadataResponseTopic(
        error_code=code, name="t", topic_id=topic_id, is_internal=False, partitions=[] if code else [partition]
    )
    brokers = [MetadataResponseBroker(node_id=it, host=f"h{it}", port=9092, rack=None) for it in (1, 2)]
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=2, topics=[topic])


def routes(**said: int) -> Routes:
    known = Routes([Address("boot", 9092)])
    known.update(answer(**said), now_ms=0)  # type: ignore[arg-type]
    return known


def test_metadata_says_who_leads_and_where_nodes_are() -> None:
    known = routes()
    assert known.leader("t", 0) == 1
    assert known.leader("t", 1) is None
    assert known.leader("u", 0) is None
    assert known.controller_id == 2
    assert known.addresses() == [(1, Address("h1", 9092)), (2, Address("h2", 9092)), (None, Address("boot", 9092))]
    assert (known.topic_id("t"), known.topic_name(TOPIC_ID)) == (TOPIC_ID, "t")


def test_what_is_known_gets_old() -> None:
    known = routes()
    assert known.is_known("t", now_ms=99, age_ms_max=100)
    assert not known.is_known("t", now_ms=100, age_ms_max=100)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_leader_that_is_none_is_asked_for_again(code: ErrorCode) -> None:
    known = routes()
    assert known.on_error("t", 0, code) is Effect.REFRESH
    assert known.leader("t", 0) is None
    known.update(answer(leader=2, epoch=6), now_ms=1)
    assert known.leader("t", 0) == 2


def test_a_hint_moves_the_leader_without_a_question() -> None:
    known = routes()
    hint = LeaderHint(3, 6)
    effect = known.on_error("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, hint=hint, endpoints=[Node(3, "h3", 9093)])
    assert effect is Effect.RETRY
    assert known.leader("t", 0) == 3
    assert known.nodes[3].address == Address("h3", 9093)


@pytest.mark.parametrize("hint", [LeaderHint(2, 5), LeaderHint(2, 4), LeaderHint(-1, 9), LeaderHint(7, 9)])
def test_a_hint_that_is_old_or_leads_nowhere_is_not_believed(hint: LeaderHint) -> None:
    known = routes()
    assert known.on_error("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, hint=hint) is Effect.REFRESH
    assert known.leader("t", 0) is None


def test_an_older_epoch_does_not_bring_back_an_old_leader_but_a_new_topic_does() -> None:
    known = routes(leader=2, epoch=6)
    known.update(answer(leader=1, epoch=5), now_ms=1)
    assert known.leader("t", 0) == 2
    known.update(answer(leader=1, epoch=0, topic_id=bytes(15) + b"\2"), now_ms=2)
    assert known.leader("t", 0) == 1


def test_a_lost_connection_puts_all_that_the_node_leads_in_doubt() -> None:
    known = routes()
    known.on_disconnect(2)
    assert known.leader("t", 0) == 1
    known.on_disconnect(1)
    assert known.leader("t", 0) is None


def test_a_topic_that_is_gone_is_forgotten_and_the_error_says_what_to_do() -> None:
    known = routes()
    known.update(answer(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), now_ms=1)
    assert known.leader("t", 0) is None
    assert known.topic_name(TOPIC_ID) is None
    assert "minibroker topics create t" in str(known.error_of("t"))


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_code_has_an_effect_and_none_is_lost(code: ErrorCode) -> None:
    effect = effect_of(code)
    assert (effect is Effect.NONE) == (code is ErrorCode.NONE)
    if code.is_retriable:
        assert effect in (Effect.RETRY, Effect.REFRESH)


def test_a_code_of_the_future_fails() -> None:
    assert effect_of(9999) is Effect.FAIL


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), st.integers(1, 65535))
def test_an_address_is_what_it_was_written_from(host: str, port: int) -> None:
    assert parse_addresses(f"{host}:{port}, [::1]:{port}") == [Address(host, port), Address("::1", port)]
    assert parse_addresses([str(Address("::1", port))]) == [Address("::1", port)]


@pytest.mark.parametrize("text", ["", " , ", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidAddress, match=r"127\.0\.0\.1:9092"):
        parse_addresses(text)
