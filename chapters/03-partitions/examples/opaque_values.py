"""Values are bytes, and only clients know their format: one order as JSON, as Avro and as Protobuf.

    python chapters/03-partitions/examples/opaque_values.py 127.0.0.1:9092

The broker stores the three values in one topic and never decodes them. Headers tell a reader the rest: `content_type`
names the format and the schema of the value, and `trace_id` identifies the order in every system that it passes. The
schemas are not in the topic. Here they are in this file; a company would keep them in a registry.

The two binary formats are coded here, as far as this order needs them, so that no package is needed and every byte can
be seen.
"""

import json
import struct
import sys
import uuid
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ANSWER_S_MAX = 10


class Order(NamedTuple):
    """An order, independent of any format."""

    number: str
    pieces: int
    price: float


# JSON: the names are in every value.


def to_json(order: Order) -> bytes:
    """Encode an order as JSON text."""
    return json.dumps(order._asdict()).encode()


def from_json(data: bytes) -> Order:
    """Decode an order by the names of its fields. Additional fields are ignored."""
    found = json.loads(data)
    return Order(found["number"], found["pieces"], found["price"])


# Avro: {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "string"},
#        {"name": "pieces", "type": "int"}, {"name": "price", "type": "double"}]}
# The value has neither names nor types, so it cannot be decoded without the schema.


def to_avro(order: Order) -> bytes:
    """Encode the fields in the order of the schema: a length and text, a zigzag varint, eight bytes of a double."""
    text = order.number.encode()
    return varint(zigzag(len(text))) + text + varint(zigzag(order.pieces)) + struct.pack("<d", order.price)


def from_avro(data: bytes) -> Order:
    """Decode the fields in the order of the schema."""
    length, position = read_varint(data, 0)
    end = position + unzigzag(length)
    pieces, price_at = read_varint(data, end)
    return Order(data[position:end].decode(), unzigzag(pieces), struct.unpack_from("<d", data, price_at)[0])


# Protobuf: message Order { string number = 1; int32 pieces = 2; double price = 3; }
# Each field has its number and its length, so that a reader can skip unknown fields.

VARINT, EIGHT_BYTES, LENGTH_FIRST = 0, 1, 2


def to_protobuf(order: Order) -> bytes:
    """Encode each field after a tag: its number and its wire type."""
    text = order.number.encode()
    number = varint(1 << 3 | LENGTH_FIRST) + varint(len(text)) + text
    pieces = varint(2 << 3 | VARINT) + varint(order.pieces)
    price = varint(3 << 3 | EIGHT_BYTES) + struct.pack("<d", order.price)
    return number + pieces + price


def from_protobuf(data: bytes) -> Order:
    """Decode the fields in any order."""
    fields: dict[int, bytes | int | float] = {}
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == LENGTH_FIRST:
            length, position = read_varint(data, position)
            fields[number] = data[position : position + length]
            position += length
        elif wire_type == EIGHT_BYTES:
            fields[number] = struct.unpack_from("<d", data, position)[0]
            position += 8
        else:
            fields[number], position = read_varint(data, position)
    text, pieces, price = fields[1], fields[2], fields[3]
    assert isinstance(text, bytes)
    return Order(text.decode(), int(pieces), float(price))


def varint(number: int) -> bytes:
    """Encode seven bits in each byte, the lowest first. The eighth bit says that more bytes follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode a varint. Return the number and the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def zigzag(number: int) -> int:
    """Map signed to unsigned numbers, small ones to small ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return number << 1 ^ number >> 63


def unzigzag(number: int) -> int:
    """Undo `zigzag`."""
    return number >> 1 ^ -(number & 1)


FORMATS: dict[str, tuple[Callable[[Order], bytes], Callable[[bytes], Order]]] = {
    "application/json": (to_json, from_json),
    "avro/binary; schema=Order.v1": (to_avro, from_avro),
    "application/x-protobuf; message=Order": (to_protobuf, from_protobuf),
}


def write(bootstrap: str, topic: str, order: Order, trace_id: str) -> None:
    """Write the order once in each format. All three have the same key, so they are in one partition, in order."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for content_type, (encode, _) in FORMATS.items():
        headers: list[tuple[str, str | bytes | None]] = [("content_type", content_type), ("trace_id", trace_id)]
        producer.produce(topic, key=order.number, value=encode(order), headers=headers, on_delivery=_check)
    if producer.flush(ANSWER_S_MAX):
        sys.exit(f"no answer from {bootstrap}")


def read(bootstrap: str, topic: str, count: int) -> list[tuple[str, str, bytes, Order]]:
    """Read records. Return the content type, the trace id, the bytes and the decoded order of each."""
    # The client requires a group id. It is not used, because the partition is assigned explicitly.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        for message in consumer.consume(count, timeout=ANSWER_S_MAX):
            _check(message.error())
            headers, value = dict(message.headers() or {}), message.value() or b""
            content_type, trace_id = (_text(headers[name]) for name in ("content_type", "trace_id"))
            _, decode = FORMATS[content_type]
            found.append((content_type, trace_id, value, decode(value)))
    finally:
        consumer.close()
    return found


def _text(header: str | bytes | None) -> str:
    return header.decode() if isinstance(header, bytes) else header or ""


def _check(error: object, _delivered: object = None) -> None:
    if error is not None:
        raise KafkaException(error)


def main(bootstrap: str) -> None:
    """Write, read and compare. The topic is deleted afterwards."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(ANSWER_S_MAX)
    order, trace_id = Order("A-1001", 3, 19.99), uuid.uuid4().hex
    write(bootstrap, topic, order, trace_id)
    for content_type, trace, data, found in read(bootstrap, topic, len(FORMATS)):
        same = found == order and trace == trace_id
        print(f"{content_type:<38} {len(data):>3} bytes, {'the same order' if same else f'another order: {found}'}")
        print(f"    {data.hex(' ', -4)}")
    admin.delete_topics([topic])[topic].result(ANSWER_S_MAX)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
