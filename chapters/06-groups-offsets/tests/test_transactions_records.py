"""Claims about the records of `__transaction_state`."""

import pytest
from cases import case

from minibroker.groups.records import CorruptRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.ids import Transaction
from minibroker.transactions.records import TransactionRecord, decode, encode, encode_value
from minibroker.transactions.transitions import TransactionState

EMPTY = Transaction(7, 0, 60_000, TransactionState.EMPTY, 8)
FULL = Transaction(
    producer_id=7,
    producer_epoch=32767,
    timeout_ms=60_000,
    state=TransactionState.PREPARE_COMMIT,
    updated_ms=8,
    partitions=frozenset({TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("a", 0)}),
    started_ms=6,
    client_version=2,
    previous_producer_id=5,
    next_producer_id=9,
)
HEX = {
    "empty": "0001 0000000000000007 0000 0000ea60 00 00 0000000000000008 ffffffffffffffff 00",
    "full": """
        0001 0000000000000007 7fff 0000ea60 02
        03 02 61 03 00000000 00000001 00   02 62 02 00000002 00
        0000000000000008 0000000000000006
        03   00 08 0000000000000005   01 08 0000000000000009   02 02 0002
    """,
    "version 0": "0000 0000000000000007 0000 0000ea60 00 ffffffff 0000000000000008 ffffffffffffffff",
}


def test_the_records_have_kafkas_bytes() -> None:
    for name, state, version in (("empty", EMPTY, 1), ("full", FULL, 1), ("version 0", EMPTY, 0)):
        with case(name):
            value = bytes.fromhex(HEX[name])
            assert encode_value(state, version) == value
            key = bytes.fromhex("0000 0002 6964")
            assert decode(key, value) == TransactionRecord("id", state)
            if version == 1:
                assert encode(TransactionRecord("id", state)) == (key, value)


def test_a_tombstone_and_a_dead_id_are_the_same_to_a_reader() -> None:
    key = bytes.fromhex("0000 0002 6964")
    assert encode(TransactionRecord("id", None)) == (key, None)
    assert decode(key, None) == TransactionRecord("id", None)
    dead = bytearray(encode_value(EMPTY))
    dead[2 + 8 + 2 + 4] = 6
    assert decode(key, bytes(dead)) == TransactionRecord("id", None)


def test_unknown_types_are_skipped_and_damaged_records_are_reported() -> None:
    key, value = encode(TransactionRecord("id", FULL))
    assert decode(b"\x00\x09" + key[2:], value) is None
    assert value is not None
    damaged = {"cut": value[:-1], "version": b"\x00\x07" + value[2:], "state": value[:16] + b"\x09" + value[17:]}
    for name, it in damaged.items():
        with case(name), pytest.raises(CorruptRecord, match="__transaction_state"):
            decode(key, it)
