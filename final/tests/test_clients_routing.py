"""Claims about routes: what metadata and error codes teach a client about the cluster."""

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


def test_metadata_names_leaders_and_the_addresses_of_nodes() -> None:
    known = routes()
    assert known.leader("t", 0) == 1
    assert known.leader("t", 1) is None
    assert known.leader("u", 0) is None
    assert known.controller_id == 2
    assert known.addresses() == [(1, Address("h1", 9092)), (2, Address("h2", 9092)), (None, Address("boot", 9092))]
    assert (known.topic_id("t"), known.topic_name(TOPIC_ID)) == (TOPIC_ID, "t")


def test_routes_expire() -> None:
    known = routes()
    assert known.is_known("t", now_ms=99, age_ms_max=100)
    assert not known.is_known("t", now_ms=100, age_ms_max=100)


def test_a_leader_that_was_deposed_is_looked_up_again() -> None:
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        known = routes()
        assert known.on_error("t", 0, code) is Effect.REFRESH, code
        assert known.leader("t", 0) is None, code
        known.update(answer(leader=2, epoch=6), now_ms=1)
        assert known.leader("t", 0) == 2, code


def test_a_hint_moves_the_leader_without_a_metadata_request() -> None:
    known = routes()
    hint = LeaderHint(3, 6)
    effect = known.on_error("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, hint=hint, endpoints=[Node(3, "h3", 9093)])
    assert effect is Effect.RETRY
    assert known.leader("t", 0) == 3
    assert known.nodes[3].address == Address("h3", 9093)


def test_a_hint_that_is_old_or_names_an_unknown_node_is_ignored() -> None:
    for hint in (LeaderHint(2, 5), LeaderHint(2, 4), LeaderHint(-1, 9), LeaderHint(7, 9)):
        known = routes()
        assert known.on_error("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, hint=hint) is Effect.REFRESH, hint
        assert known.leader("t", 0) is None, hint


def test_an_older_epoch_is_ignored_unless_the_topic_is_a_new_one() -> None:
    known = routes(leader=2, epoch=6)
    known.update(answer(leader=1, epoch=5), now_ms=1)
    assert known.leader("t", 0) == 2
    known.update(answer(leader=1, epoch=0, topic_id=bytes(15) + b"\2"), now_ms=2)
    assert known.leader("t", 0) == 1


def test_a_lost_connection_makes_the_routes_to_that_leader_stale() -> None:
    known = routes()
    known.on_disconnect(2)
    assert known.leader("t", 0) == 1
    known.on_disconnect(1)
    assert known.leader("t", 0) is None


def test_a_deleted_topic_is_forgotten_and_the_error_says_how_to_create_it() -> None:
    known = routes()
    known.update(answer(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), now_ms=1)
    assert known.leader("t", 0) is None
    assert known.topic_name(TOPIC_ID) is None
    assert "minibroker topics create t" in str(known.error_of("t"))


def test_every_error_code_has_an_effect_and_retriable_codes_are_retried() -> None:
    for code in ErrorCode:
        effect = effect_of(code)
        assert (effect is Effect.NONE) == (code is ErrorCode.NONE), code
        assert not code.is_retriable or effect in (Effect.RETRY, Effect.REFRESH), code


def test_an_unknown_code_fails() -> None:
    assert effect_of(9999) is Effect.FAIL


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), st.integers(1, 65535))
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    assert parse_addresses(f"{host}:{port}, [::1]:{port}") == [Address(host, port), Address("::1", port)]
    assert parse_addresses([str(Address("::1", port))]) == [Address("::1", port)]


def test_an_invalid_address_is_refused_with_an_example() -> None:
    for text in ("", " , ", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "host:-1"):
        try:
            accepted = parse_addresses(text)
        except InvalidAddress as error:
            assert "127.0.0.1:9092" in str(error), text
        else:
            pytest.fail(f"{text!r} was read as {accepted}")
