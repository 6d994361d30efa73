"""Claims about the accumulator: it keeps order and promises under every fault of brokers and network."""

from random import Random

import pytest
from accumulator_world import World
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.errors import BrokerError, ClientClosed, ConnectionLost
from minibroker.clients.accumulator import Accumulator, Answer, ProducerConfig, produce_request
from minibroker.clients.batching import ProducerBatch
from minibroker.clients.errors import BufferFull, DeliveryTimedOut, InvalidSetting, RecordTooLarge
from minibroker.log.batch import Batch
from minibroker.log.compression import Compression
from minibroker.log.errors import CorruptBatch
from minibroker.wire.codes import ErrorCode

IDEMPOTENT = ProducerConfig(batch_size=150, linger_ms=10, delivery_timeout_ms=3000)
PLAIN = ProducerConfig(batch_size=150, linger_ms=10, delivery_timeout_ms=3000, idempotence=False)

REFUSALS = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE]
DOUBTS = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
QUIET = {"produce": 8, "drain": 8, "work": 8, "answer": 8, "wait": 4, "refuse": 1, "move": 0.3, "know": 0.2}
FAULTS = QUIET | {"doubt": 0.6, "disconnect": 0.6, "late": 1, "long": 0.05}
STEPS = 300

seeds = given(st.integers(0, 2**32 - 1))


def act(world: World, chance: Random, weights: dict[str, float]) -> None:
    """Let one random event happen, chosen by weight."""
    node_id = partition = chance.randrange(2)
    match chance.choices(list(weights), list(weights.values()))[0]:
        case "produce":
            world.produce(partition)
        case "drain":
            world.drain()
        case "work":
            world.carry_out(node_id)
        case "answer":
            world.answer(node_id)
        case "wait":
            world.wait(chance.choice([1, 20, 150]))
        case "long":
            world.wait(1500)
        case "refuse":
            world.carry_out(node_id, chance.choice(REFUSALS), is_written=False)
        case "doubt":
            world.carry_out(node_id, chance.choice(DOUBTS))
        case "disconnect":
            world.disconnect(node_id, arrives=chance.random() < 0.5)
        case "late":
            world.arrive_late()
        case "move":
            world.move(partition)
        case "know":
            world.is_known = not world.is_known


def world_after(config: ProducerConfig, seed: int, weights: dict[str, float]) -> World:
    world = World(config)
    chance = Random(seed)
    for _ in range(STEPS):
        act(world, chance, weights)
        world.check_order()
        world.check_deadlines()
    world.is_known = True
    return world


@seeds
def test_idempotence_keeps_order_and_one_copy_under_all_faults(seed: int) -> None:
    world = world_after(IDEMPOTENT, seed, FAULTS)
    world.settle()
    while any(world.broken):
        world.arrive_late()
    world.check_order()
    world.check_promises()
    assert world.accumulator.buffered_bytes == 0


@seeds
def test_without_idempotence_order_holds_as_long_as_every_request_is_answered(seed: int) -> None:
    world = world_after(PLAIN, seed, QUIET)
    world.settle()
    world.check_order()
    world.check_promises()
    assert world.accumulator.buffered_bytes == 0


@seeds
def test_every_promise_is_settled_by_its_deadline_even_without_answers(seed: int) -> None:
    world = world_after(IDEMPOTENT, seed, FAULTS)
    world.wait(IDEMPOTENT.delivery_timeout_ms)
    assert all(delivery.is_done for _number, _partition, _deadline_ms, delivery in world.promises)
    assert world.accumulator.buffered_bytes == 0


@seeds
def test_a_wakeup_is_never_missed(seed: int) -> None:
    # A sender that sleeps until the wakeup, and wakes for answers, sends everything.
    world = world_after(IDEMPOTENT, seed, FAULTS)
    for _ in range(400):
        world.drain()
        while any(world.connections.values()):
            for node_id in world.connections:
                world.carry_out(node_id)
                world.answer(node_id)
            world.drain()
        wakeup_ms = world.accumulator.wakeup_ms(world.now_ms)
        if wakeup_ms is None:
            break
        assert wakeup_ms > world.now_ms
        world.now_ms = wakeup_ms
    assert world.accumulator.is_idle


def test_the_random_events_reach_gaps_timeouts_and_refusals() -> None:
    worlds = [world_after(IDEMPOTENT, seed, FAULTS) for seed in range(30)]
    assert any(log.epoch > 0 for world in worlds for log in world.logs.values()), "no epoch was ever raised"
    errors = [type(delivery.error) for world in worlds for *_others, delivery in world.promises]
    assert {DeliveryTimedOut, BrokerError} <= set(errors)
    assert sum(len(log.values) for world in worlds for log in world.logs.values()) > 500


# Single rules -------------------------------------------------------------------------------------------------------


def sequences(world: World, node_id: int = 0) -> list[tuple[int, int]]:
    """Epoch and sequence of each batch that is in flight to a node."""
    headers = [Batch(copy.data).header for request in world.connections[node_id] for copy in request.copies]
    return [(header.producer_epoch, header.base_sequence) for header in headers]


def produced(count: int, config: ProducerConfig = IDEMPOTENT, *, proven: bool = True) -> World:
    """A world with one record in each batch; with `proven`, a first batch was acknowledged before them."""
    world = World(config)
    if proven:
        world.produce(0)
        world.accumulator.flush()
        world.drain()
        world.carry_out(0)
        world.answer(0)
    for _ in range(count):
        world.produce(0)
        world.accumulator.flush()
        world.drain()
    return world


def test_a_batch_lingers_for_linger_ms_or_until_it_is_full() -> None:
    world = World(ProducerConfig(batch_size=150, linger_ms=10))
    world.produce(0)
    world.drain()
    assert sequences(world) == []
    assert world.accumulator.wakeup_ms(world.now_ms) == 10
    world.wait(10)
    assert sequences(world) == [(0, 0)]
    for _ in range(20):
        world.produce(1)
    world.drain()
    assert len(sequences(world, 1)) == 1


def test_the_first_batch_of_an_epoch_travels_alone() -> None:
    world = produced(3, proven=False)
    assert sequences(world) == [(0, 0)]
    world.carry_out(0)
    world.answer(0)
    world.accumulator.flush()
    world.drain()
    assert sequences(world) == [(0, 1)]  # the two records that waited are one batch now


def test_no_more_than_five_are_in_flight() -> None:
    world = produced(9)
    assert sequences(world) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]


def test_no_batch_is_sent_while_the_fifth_before_it_is_not_acknowledged() -> None:
    world = produced(5)
    world.carry_out(0, ErrorCode.REQUEST_TIMED_OUT)
    for _ in range(4):
        world.carry_out(0)
    for _ in range(5):
        world.answer(0)
    world.produce(0)
    world.now_ms += 1000
    for _ in range(3):
        world.accumulator.flush()
        world.drain()
    assert sequences(world) == [(0, 1)], "a second copy of 1 must still be recognised"


def test_without_idempotence_one_batch_of_a_partition_is_in_flight() -> None:
    world = produced(3, PLAIN, proven=False)
    assert sequences(world) == [(-1, -1)]


def test_after_a_failure_batches_are_sent_again_in_order_once_the_others_are_answered() -> None:
    world = produced(3)
    world.carry_out(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, is_written=False)
    world.carry_out(0)
    world.answer(0)
    world.now_ms += 1000
    world.drain()
    assert sequences(world) == [(0, 2), (0, 3)], "two are not answered yet"
    world.answer(0)
    world.carry_out(0)
    world.answer(0)
    world.now_ms += 1500
    for _ in range(3):
        world.drain()
    assert sequences(world) == [(0, 1), (0, 2), (0, 3)]


def test_a_gap_raises_the_epoch_and_numbers_the_rest_from_0() -> None:
    world = produced(2)
    world.carry_out(0, ErrorCode.MESSAGE_TOO_LARGE, is_written=False)
    world.answer(0)
    assert isinstance(world.promises[1][3].error, BrokerError)
    world.carry_out(0)  # refused as out of order, with none before it
    world.answer(0)
    world.now_ms += 1000
    world.drain()
    assert sequences(world) == [(1, 0)]
    world.settle()
    assert world.logs["t", 0].values == [0, 2]


def test_a_late_copy_of_a_batch_that_was_given_up_is_refused() -> None:
    world = produced(1)
    world.disconnect(0, arrives=True)
    world.wait(IDEMPOTENT.delivery_timeout_ms)
    assert isinstance(world.promises[1][3].error, DeliveryTimedOut)
    world.produce(0)
    world.settle()
    world.arrive_late()
    assert world.logs["t", 0].values == [0, 2]


def test_after_the_last_epoch_another_producer_id_is_requested() -> None:
    accumulator = Accumulator(IDEMPOTENT)
    accumulator.on_producer_id(producer_id=7, producer_epoch=32767)
    deliver = accumulator.append("t", 0, key=None, value=b"x", timestamp=0, now_ms=0)
    accumulator.flush()
    (send,) = accumulator.drain(0, lambda *_: 0).sends
    accumulator.on_answers(send, lambda _: Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), now_ms=0)
    assert accumulator.drain(1000, lambda *_: 0).sends == []
    assert accumulator.needs_producer_id
    accumulator.on_producer_id(producer_id=8, producer_epoch=0)
    (send,) = accumulator.drain(1000, lambda *_: 0).sends
    header = Batch(send.batches[0].encode(Compression.NONE)).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 0, 0)
    assert not deliver.is_done


def test_sequences_wrap_to_0_after_the_largest() -> None:
    accumulator = Accumulator(IDEMPOTENT)
    accumulator.on_producer_id(producer_id=7, producer_epoch=0)
    for _ in range(2):
        accumulator.append("t", 0, key=None, value=b"x", timestamp=0, now_ms=0)
    accumulator._streams["t", 0].next_sequence = 2**31 - 1
    accumulator.flush()
    (send,) = accumulator.drain(0, lambda *_: 0).sends
    accumulator.on_answers(send, lambda _: Answer(ErrorCode.NONE, 0), now_ms=0)
    accumulator.append("t", 0, key=None, value=b"x", timestamp=0, now_ms=0)
    accumulator.flush()
    (send,) = accumulator.drain(0, lambda *_: 0).sends
    assert send.batches[0].sequence == 1


def test_a_batch_that_gets_another_number_stays_valid() -> None:
    for codec in Compression:
        check_renumbering(codec)


def check_renumbering(codec: Compression) -> None:
    batch = ProducerBatch("t", 0, order=0, ready_ms=0, deadline_ms=1)
    for number in range(10):
        batch.append(timestamp=100 - number, key=b"k", value=b"v%d" % number, headers=[("h", None)])
    batch.encode(codec)
    identity = type(batch.identity)(producer_id=5, producer_epoch=6)
    batch.number(identity, 77)
    encoded = Batch(batch.encode(codec))
    try:
        encoded.check_crc()
    except CorruptBatch as error:
        pytest.fail(f"{codec.name}: {error}")
    header = encoded.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 77), codec
    assert [record.value for record in encoded.records()] == [b"v%d" % number for number in range(10)], codec
    assert header.max_timestamp == 100, codec


def test_memory_is_bounded_and_given_back() -> None:
    accumulator = Accumulator(ProducerConfig(batch_size=1000, buffer_memory=5000, linger_ms=1000))
    accumulator.on_producer_id(producer_id=1, producer_epoch=0)
    while accumulator.buffered_bytes < 4700:
        accumulator.append("t", 0, key=None, value=b"x" * 100, timestamp=0, now_ms=0)
    with pytest.raises(BufferFull, match="of 5000 bytes"):
        accumulator.append("t", 0, key=None, value=b"x" * 400, timestamp=0, now_ms=0)
    full = accumulator.buffered_bytes
    assert full <= 5000
    # When memory is short, batches do not linger.
    (send,) = accumulator.drain(0, lambda *_: 0).sends
    accumulator.on_answers(send, lambda _: Answer(ErrorCode.NONE, 0), now_ms=0)
    assert accumulator.buffered_bytes == full - send.batches[0].size
    accumulator.append("t", 0, key=None, value=b"x" * 100, timestamp=0, now_ms=0)


def test_a_record_that_no_request_can_carry_is_refused() -> None:
    accumulator = Accumulator(ProducerConfig(max_request_size=20_000))
    with pytest.raises(RecordTooLarge, match="max_request_size"):
        accumulator.append("t", 0, key=None, value=b"x" * 20_000, timestamp=0, now_ms=0)
    accumulator.append("t", 0, key=None, value=b"x" * 18_000, timestamp=0, now_ms=0)
    assert accumulator.take_filled() == [("t", 0)], "larger than batch_size: it gets a batch of its own"


def test_a_partition_without_a_leader_is_named_and_keeps_its_records() -> None:
    world = World(IDEMPOTENT)
    world.produce(0)
    world.accumulator.flush()
    world.accumulator.on_producer_id(producer_id=1, producer_epoch=0)
    drained = world.accumulator.drain(0, lambda *_: None)
    assert drained.topics_without_leader == {"t"}
    assert drained.sends == []
    world.settle()
    assert world.logs["t", 0].values == [0]


def test_with_acks_0_a_record_is_done_when_it_is_sent() -> None:
    accumulator = Accumulator(ProducerConfig(acks=0, idempotence=False))
    delivery = accumulator.append("t", 0, key=None, value=b"x", timestamp=0, now_ms=0)
    accumulator.flush()
    (send,) = accumulator.drain(0, lambda *_: 0).sends
    assert produce_request(send, ProducerConfig(acks=0, idempotence=False)).acks == 0
    accumulator.on_written(send)
    assert (delivery.is_done, delivery.error, delivery.offset) == (True, None, -1)


def test_giving_up_breaks_every_promise() -> None:
    world = produced(7)
    world.accumulator.give_up(ClientClosed("closed"))
    assert all(delivery.is_done for _number, _partition, _deadline_ms, delivery in world.promises)
    assert world.accumulator.is_idle
    world.disconnect(0, arrives=False)
    assert world.accumulator.buffered_bytes == 0


def test_a_request_takes_partitions_in_turn_when_they_do_not_all_fit() -> None:
    config = ProducerConfig(max_request_size=400, batch_size=300, idempotence=False)
    accumulator = Accumulator(config)
    for partition in range(3):
        accumulator.append("t", partition, key=None, value=b"x" * 150, timestamp=0, now_ms=0)
    accumulator.flush()
    seen = []
    for _ in range(3):
        (send,) = accumulator.drain(0, lambda *_: 0).sends
        seen += [batch.partition for batch in send.batches]
        accumulator.on_lost(send, ConnectionLost("lost"), now_ms=-10_000)
    assert sorted(seen) == [0, 1, 2]


def test_settings_that_cannot_work_are_refused() -> None:
    cases: list[tuple[dict[str, int], str]] = [
        ({"acks": 2}, "0, 1 or -1"),
        ({"acks": 1}, "idempotence=False"),
        ({"max_in_flight": 6}, "1 to 5"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"batch_size": 100, "buffer_memory": 50}, "buffer_memory=50"),
    ]
    for settings, words in cases:
        try:
            ProducerConfig(**settings)  # type: ignore[arg-type]
        except InvalidSetting as error:
            assert words in str(error), settings
        else:
            pytest.fail(f"{settings} was accepted")
