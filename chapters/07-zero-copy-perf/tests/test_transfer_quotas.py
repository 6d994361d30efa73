"""Quotas through the registry, as frames: how they are set, and how long their clients must wait."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cases import case
from partitions_broker import NOW_MS, MemoryBroker, Write, answered, batch, fetch_request, joined, produce_request

from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.records import ConfigRecord
from minibroker.partitions.administration import Administration
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Call, Handler, Reply, Session
from minibroker.transfer.arrivals import Arrivals
from minibroker.transfer.matching import entity
from minibroker.transfer.mutations import KINDS, Mutations
from minibroker.transfer.quota_answering import DEFAULT, EXACT, SPECIFIED, QuotaHandlers
from minibroker.transfer.quotas import Metering, Quotas, usage_of
from minibroker.transfer.session_fetch import SessionFetch
from minibroker.transfer.tables.alter_client_quotas import AlterClientQuotasRequest, AlterEntry, EntityData, OpData
from minibroker.transfer.tables.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from minibroker.transfer.usage import Usage
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request
from minibroker.wire.tables.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from minibroker.wire.tables.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.tables.metadata import MetadataRequest
from minibroker.wire.uuids import NO_UUID

Names = Mapping[str, str | None]


class QuotaBroker(MemoryBroker):
    """The broker of chapter 03 with the quotas of chapter 07. Its clock moves when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.usage = Usage()
        self.metering = Metering(self.usage, clock=lambda: self.now_ms)
        self.session = Session("127.0.0.1:5000")
        self.authority.subscribe(lambda _old, new: self.usage.set_quotas(new.client_quotas))
        handlers = QuotaHandlers(self.authority)
        self.registry.add(ApiKey.ALTER_CLIENT_QUOTAS, handlers.alter)
        self.registry.add(ApiKey.DESCRIBE_CLIENT_QUOTAS, handlers.describe)
        ids = iter(range(5000, 9000))
        topics = Administration(self.authority, self.config, new_topic_id=lambda: next(ids).to_bytes(16, "big"))
        self.registry.add(ApiKey.CREATE_TOPICS, topics.create_topics)
        self.registry.add(ApiKey.DELETE_TOPICS, topics.delete_topics)
        self.registry.add(ApiKey.CREATE_PARTITIONS, topics.create_partitions)
        self.registry.guard(self._with_sessions)
        self.registry.guard(self._with_mutations)
        self.registry.guard(self.metering.guard)

    def _with_sessions(self, key: ApiKey, handler: Handler) -> Handler:
        sessions = SessionFetch(
            self.waiting,
            slots=10,
            new_id=iter(range(1, 100)).__next__,
            clock=lambda: self.now_ms,
            topic_name=self.store.topic_name,
            bytes_max=10**8,
            limit=self.metering,
        )
        return (lambda call: sessions(call, handler)) if key is ApiKey.FETCH else handler

    def _with_mutations(self, key: ApiKey, handler: Handler) -> Handler:
        def answer(call: Call[Any]) -> Any:
            tokens = self.metering.allowance(call).mutate
            if tokens is None:
                return handler(call)
            image = self.authority.image
            mutations = Mutations(key, tokens, image, default_partitions=1, clock=lambda: self.now_ms)
            return mutations.answer(call, handler)

        return answer if key in KINDS else handler

    def send(self, request: Request, *, client_id: str = "app", version: int | None = None) -> Any:
        """What a client gets, and what its connection is told: `session.pause_ms`."""
        self.session.pause_ms = 0
        api = APIS[request.schema.key or 0]
        parts = frame_request(
            request, version=api.max_version if version is None else version, correlation_id=7, client_id=client_id
        )
        frame = memoryview(bytearray(joined(parts)))[4:]
        outcome = self.registry.dispatch(frame, now_ms=NOW_MS, session=self.session)
        assert isinstance(outcome, Reply)
        self.waiting.settle()
        return answered(request, outcome, version)

    def set_quota(self, names: Names, **values: float | None) -> ErrorCode:
        (result,) = self.send(altering(names, values)).entries
        return ErrorCode(result.error_code)

    def described(self, *components: ComponentData, strict: bool = False) -> dict[Any, dict[str, float]]:
        response = self.send(DescribeClientQuotasRequest(components=list(components), strict=strict))
        assert response.error_code == 0, response.error_message
        return {
            tuple((it.entity_type, it.entity_name) for it in entry.entity): {it.key: it.value for it in entry.values}
            for entry in response.entries
        }


def altering(
    names: Names, values: Mapping[str, float | None], *more: Names, validate_only: bool = False
) -> AlterClientQuotasRequest:
    """Give the same values to entities; None removes a quota."""
    ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
    entries = [
        AlterEntry(entity=[EntityData(entity_type=type_, entity_name=name) for type_, name in it.items()], ops=ops)
        for it in (names, *more)
    ]
    return AlterClientQuotasRequest(entries=entries, validate_only=validate_only)


ONE = {"producer_byte_rate": 1.0}
ANYONE: Names = {"user": "ANONYMOUS"}
DEFAULT_CLIENT: Names = {"client-id": None}


@pytest.fixture
def broker() -> QuotaBroker:
    broker = QuotaBroker()
    broker.create("orders", 2)
    return broker


# Setting and describing -----------------------------------------------------------------------------------------------


def test_quotas_are_set_changed_removed_and_described(broker: QuotaBroker) -> None:
    both: Names = {"client-id": "app", "user": "ada"}
    assert broker.set_quota(both, producer_byte_rate=1000, request_percentage=12.5) is ErrorCode.NONE
    assert broker.set_quota(DEFAULT_CLIENT, consumer_byte_rate=5) is ErrorCode.NONE
    assert broker.set_quota({"ip": "10.0.0.1"}, connection_creation_rate=3) is ErrorCode.NONE
    assert broker.described() == {
        (("client-id", "app"), ("user", "ada")): {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
        (("client-id", None),): {"consumer_byte_rate": 5.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 3.0},
    }
    assert broker.set_quota(both, producer_byte_rate=None, request_percentage=None) is ErrorCode.NONE
    assert broker.set_quota(DEFAULT_CLIENT, consumer_byte_rate=6) is ErrorCode.NONE
    assert broker.described(ComponentData(entity_type="client-id", match_type=SPECIFIED, match=None)) == {
        (("client-id", None),): {"consumer_byte_rate": 6.0}
    }


def test_a_filter_selects_by_name_by_default_and_by_type(broker: QuotaBroker) -> None:
    names: list[Names] = [{"user": "ada"}, {"user": None}, {"user": "ada", "client-id": "app"}, {"client-id": "app"}]
    for it in names:
        broker.set_quota(it, producer_byte_rate=1)
    ada = ComponentData(entity_type="user", match_type=EXACT, match="ada")
    anyone = ComponentData(entity_type="user", match_type=DEFAULT, match=None)
    any_user = ComponentData(entity_type="user", match_type=SPECIFIED, match=None)
    app = ComponentData(entity_type="client-id", match_type=EXACT, match="app")
    for components, strict, count in (
        ([], False, 4),
        ([], True, 0),
        ([ada], False, 2),
        ([ada], True, 1),
        ([anyone], False, 1),
        ([any_user], False, 3),
        ([any_user], True, 2),
        ([ada, app], True, 1),
        ([any_user, app], False, 1),
        ([app], True, 1),
    ):
        with case(f"{components}, strict={strict}"):
            assert len(broker.described(*components, strict=strict)) == count


def test_a_filter_without_sense_is_refused(broker: QuotaBroker) -> None:
    def component(type_: str, match_type: int = SPECIFIED, match: str | None = None) -> ComponentData:
        return ComponentData(entity_type=type_, match_type=match_type, match=match)

    for components, code in (
        ([component("")], ErrorCode.INVALID_REQUEST),
        ([component("group")], ErrorCode.UNSUPPORTED_VERSION),
        ([component("user"), component("user")], ErrorCode.INVALID_REQUEST),
        ([component("user"), component("ip")], ErrorCode.INVALID_REQUEST),
        ([component("user", EXACT)], ErrorCode.INVALID_REQUEST),
        ([component("user", DEFAULT, "ada")], ErrorCode.INVALID_REQUEST),
        ([component("user", 3)], ErrorCode.INVALID_REQUEST),
    ):
        with case(f"{components}"):
            response = broker.send(DescribeClientQuotasRequest(components=components, strict=False))
            assert (response.error_code, response.entries) == (code, None)
            assert response.error_message


def test_a_quota_without_sense_is_refused_and_changes_nothing(broker: QuotaBroker) -> None:
    for names, values in (
        ({}, {"producer_byte_rate": 1}),
        ({"group": "g"}, {"producer_byte_rate": 1}),
        ({"user": ""}, {"producer_byte_rate": 1}),
        ({"user": "ada", "ip": "10.0.0.1"}, {"connection_creation_rate": 1}),
        ({"ip": "somewhere"}, {"connection_creation_rate": 1}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1}),
        ({"user": "ada"}, {"connection_creation_rate": 1}),
        ({"user": "ada"}, {"no_such_quota": 1}),
        ({"user": "ada"}, {"producer_byte_rate": 0}),
        ({"user": "ada"}, {"producer_byte_rate": -5}),
        ({"user": "ada"}, {"producer_byte_rate": 1.5}),
        ({"user": "ada"}, {"producer_byte_rate": float("nan")}),
        ({"user": "ada"}, {"consumer_byte_rate": 5, "producer_byte_rate": float("inf")}),
    ):
        with case(f"{names} {values}"):
            (result,) = broker.send(altering(names, values)).entries
            assert result.error_code == ErrorCode.INVALID_REQUEST
            assert result.error_message
    assert broker.described() == {}


def test_an_entity_or_a_quota_that_is_named_twice_is_refused(broker: QuotaBroker) -> None:
    twice = altering({"user": "ada", "client-id": "a"}, ONE, {"client-id": "a", "user": "ada"})
    assert [it.error_code for it in broker.send(twice).entries] == [ErrorCode.INVALID_REQUEST] * 2
    request = altering({"user": "ada"}, ONE)
    request.entries[0].ops *= 2
    (result,) = broker.send(request).entries
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert broker.described() == {}


def test_one_entity_in_error_does_not_affect_the_others_and_a_check_changes_nothing(broker: QuotaBroker) -> None:
    request = altering({"user": ""}, ONE, {"user": "ada"})
    assert [it.error_code for it in broker.send(request).entries] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert list(broker.described()) == [(("user", "ada"),)]
    checked = altering({"user": "eve"}, ONE, validate_only=True)
    assert [it.error_code for it in broker.send(checked).entries] == [ErrorCode.NONE]
    assert list(broker.described()) == [(("user", "ada"),)]


# Bytes ----------------------------------------------------------------------------------------------------------------


def test_a_producer_above_its_rate_is_answered_at_once_and_must_wait(broker: QuotaBroker) -> None:
    # Of two delays the longer one counts. Here the second quota causes none.
    broker.set_quota(DEFAULT_CLIENT, producer_byte_rate=1000, request_percentage=10_000)
    for acks in (1, -1, 0):
        with case(f"acks={acks}"):
            broker.now_ms += 60_000
            request = produce_request("orders", batch(b"x" * 15_000), acks=acks)
            response = broker.send(request)
            assert 5_000 < broker.session.pause_ms < 5_500
            if acks:
                assert response.throttle_time_ms == broker.session.pause_ms
                assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert broker.end("orders") == 3


def test_other_clients_other_requests_and_nodes_do_not_wait(broker: QuotaBroker) -> None:
    broker.set_quota({"client-id": "app"}, producer_byte_rate=1000)
    large = produce_request("orders", batch(b"x" * 15_000))
    assert broker.send(large).throttle_time_ms > 0
    assert broker.send(large, client_id="other").throttle_time_ms == 0
    assert broker.send(MetadataRequest(topics=None)).throttle_time_ms == 0
    broker.session.node_id = 3
    assert broker.send(large).throttle_time_ms == 0
    assert broker.session.pause_ms == 0


def test_a_consumer_above_its_rate_gets_an_empty_answer_which_does_not_count(broker: QuotaBroker) -> None:
    broker.produce("orders", batch(b"x" * 800))
    broker.set_quota(ANYONE, consumer_byte_rate=100)
    fetch = fetch_request("orders")
    assert broker.send(fetch, version=12).responses[0].partitions[0].records
    throttled = broker.send(fetch, version=12)
    assert throttled.responses == []
    assert throttled.throttle_time_ms == broker.session.pause_ms > 0
    # The empty answer does not count, so the same delay is enough.
    broker.now_ms += 11_000
    assert broker.send(fetch, version=12).responses[0].partitions[0].records


def test_a_fetch_is_cut_to_what_the_quota_can_ever_allow(broker: QuotaBroker) -> None:
    for _ in range(20):
        broker.produce("orders", batch(b"x" * 400))
    broker.set_quota(ANYONE, consumer_byte_rate=200)
    fetch = fetch_request("orders", min_bytes=10**6, max_wait_ms=60_000)
    # The names and offsets count as well, so the first answer is a little too large for ten seconds.
    assert broker.send(fetch, version=12).throttle_time_ms < 1000
    broker.now_ms += broker.session.pause_ms
    records = broker.send(fetch, version=12).responses[0].partitions[0].records
    assert 1_500 < len(records) <= 2_000


# Time -----------------------------------------------------------------------------------------------------------------


def test_a_client_that_takes_too_much_time_must_wait_a_second_at_most(
    broker: QuotaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr("minibroker.transfer.quotas.perf_counter", lambda: float(next(ticks)))
    broker.set_quota({"client-id": "app"}, request_percentage=1)
    # Every request takes a second of the clock: ten percent of the last ten seconds.
    response = broker.send(MetadataRequest(topics=[]))
    assert response.throttle_time_ms == broker.session.pause_ms == 1000
    assert broker.send(MetadataRequest(topics=[]), client_id="other").throttle_time_ms == 0


def test_a_request_that_waits_is_limited_when_it_is_answered(
    broker: QuotaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its attempts takes time. The time in between does not count, and neither does that of other clients."""
    ticks = iter(range(1000))
    monkeypatch.setattr("minibroker.transfer.quotas.perf_counter", lambda: float(next(ticks)))
    broker.set_quota({"client-id": "test"}, request_percentage=1)
    responses = broker.wait_for(fetch_request("orders", min_bytes=1, max_wait_ms=60_000), 12)
    broker.send(produce_request("orders", batch(b"x")))
    assert responses[0].responses[0].partitions[0].records
    assert responses[0].throttle_time_ms == 1000
    limited = broker.usage.of("ANONYMOUS", "test", broker.now_ms).request
    assert limited is not None
    assert limited.rate.per_second(broker.now_ms) == 2 * 100 / 10


def test_a_login_is_not_limited(broker: QuotaBroker) -> None:
    def handler(_call: Call[Any]) -> None:
        return None

    for key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA):
        assert (broker.metering.guard(key, handler) is handler) == (key is not ApiKey.METADATA)


# Changes of topics ----------------------------------------------------------------------------------------------------


def creating(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(name=it, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        for it in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000)


def test_topics_beyond_the_rate_are_refused_one_by_one(broker: QuotaBroker) -> None:
    broker.set_quota(ANYONE, controller_mutation_rate=1)
    # Eleven tokens are there. A topic that begins with tokens is accepted.
    response = broker.send(creating("a", "b", "c", partitions=6))
    assert {it.name: it.error_code for it in response.topics} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.NONE,
        "c": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
    assert response.throttle_time_ms == broker.session.pause_ms == 1000
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name="a", topic_id=NO_UUID)], timeout_ms=1000)
    (result,) = broker.send(deleted).responses
    assert (result.name, result.error_code) == ("a", ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=9, assignments=None)], timeout_ms=1000, validate_only=False
    )
    (grown,) = broker.send(more).results
    assert grown.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    broker.now_ms += 1001
    assert [it.error_code for it in broker.send(deleted).responses] == [ErrorCode.NONE]


def test_an_older_client_is_accepted_and_must_wait(broker: QuotaBroker) -> None:
    broker.set_quota(ANYONE, controller_mutation_rate=1)
    response = broker.send(creating("a", "b", "c", partitions=6), version=5)
    assert [it.error_code for it in response.topics] == [ErrorCode.NONE] * 3
    assert response.throttle_time_ms == broker.session.pause_ms == 7000


def test_a_topic_that_cannot_be_changed_takes_no_token(broker: QuotaBroker) -> None:
    broker.set_quota(ANYONE, controller_mutation_rate=1)
    for _ in range(20):
        response = broker.send(creating("orders", partitions=100))
        assert [it.error_code for it in response.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert response.throttle_time_ms == 0


def test_a_name_in_the_image_has_the_order_of_a_name_in_the_code(broker: QuotaBroker) -> None:
    broker.set_quota({"user": "ada", "client-id": None}, producer_byte_rate=1)
    assert list(broker.authority.image.client_quotas) == [entity(user="ada", client_id=None)]


# The part of a node ---------------------------------------------------------------------------------------------------


def test_a_node_follows_the_quotas_in_its_metadata_and_limits_no_other_node(
    broker: QuotaBroker, tmp_path: Path
) -> None:
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "controller.quota.window.num": "2"}
    machine = Machine(NodeConfig(settings))
    usage = usage_of(machine.config)
    arrivals = Arrivals(usage, rate_max=10)
    part = Quotas(machine, lambda: broker.authority, Metering(usage), arrivals)
    ids = iter(range(1000, 2000))
    topics = Administration(broker.authority, machine.config, new_topic_id=lambda: next(ids).to_bytes(16, "big"))
    machine.registry.add(ApiKey.CREATE_TOPICS, topics.create_topics)
    broker.set_quota(ANYONE, controller_mutation_rate=1)
    part.open()
    part.add_handlers(machine.registry, broker.store)
    part.start()
    broker.registry = machine.registry
    with case("what was set before the start, over windows of its own"):
        # Only two tokens are there, and sixty are taken.
        assert broker.send(creating("a", partitions=60)).topics[0].error_code == ErrorCode.NONE
        refused = broker.send(creating("b"))
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 50_000 < refused.throttle_time_ms == broker.session.pause_ms <= 58_000
    with case("other nodes"):
        broker.session.node_id = 2
        assert broker.send(creating("c")).topics[0].error_code == ErrorCode.NONE
        broker.session.node_id = None
    with case("what changes later"):
        broker.set_quota(ANYONE, controller_mutation_rate=None)
        assert broker.send(creating("d")).topics[0].error_code == ErrorCode.NONE
        rate = ConfigRecord(resource_type=4, resource_name="", name="max.connection.creation.rate", value="3")
        broker.authority.propose(Write([rate]))
        assert arrivals.rate_max == 3
