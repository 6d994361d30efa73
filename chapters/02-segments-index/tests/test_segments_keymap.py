"""The map from keys to newest offsets: a dict in memory of a fixed size."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case

from minibroker.segments.keymap import LOAD_MAX, SLOT_BYTES, KeyMap, bytes_wanted

# Short keys are stored themselves, long ones as a digest: take both, and those at the limit.
FEW_KEYS = st.sampled_from([b"", b"a", b"b", *(bytes(n) for n in range(1, 20)), b"key" * 100])


@given(st.lists(st.tuples(FEW_KEYS | st.binary(max_size=3), st.integers(0, 3)), max_size=200))
def test_a_key_map_holds_what_a_dict_holds(steps: list[tuple[bytes, int]]) -> None:
    newest, model, offset = KeyMap(bytes_wanted(200)), {}, 0
    for key, gap in steps:
        offset += gap
        assert newest.put(key, offset)
        model[key] = offset
    assert len(newest) == len(model)
    assert {key: newest.newest(key) for key in model} == model
    assert newest.newest(b"never put") == -1


@given(st.integers(2, 60), st.lists(st.binary(max_size=1), max_size=200))
def test_a_full_map_refuses_new_keys_and_still_takes_known_ones(slots: int, keys: list[bytes]) -> None:
    newest, model = KeyMap(slots * SLOT_BYTES), dict[bytes, int]()
    for offset, key in enumerate(keys):
        has_room = key in model or len(model) < int(slots * LOAD_MAX)
        assert newest.put(key, offset) == has_room
        if has_room:
            model[key] = offset
    assert {key: newest.newest(key) for key in set(keys)} == {key: model.get(key, -1) for key in set(keys)}


@each_case("bytes_max", [48, 100, 1000, 12345])
def test_a_key_map_never_takes_more_than_its_memory(bytes_max: int) -> None:
    newest = KeyMap(bytes_max)
    size = newest.size
    assert bytes_max - SLOT_BYTES < size <= bytes_max
    for n in range(2000):
        newest.put(b"%d" % n * 100, n)
    assert newest.size == size
    assert len(newest) == int(size / SLOT_BYTES * LOAD_MAX)


def test_offsets_of_64_bits_come_back() -> None:
    newest = KeyMap(1000)
    for offset in (0, 1, 2**31, 2**63 - 1):
        assert newest.put(b"key", offset)
        assert newest.newest(b"key") == offset


def test_a_key_map_without_room_for_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="47 bytes hold no key: at least 48"):
        KeyMap(47)


@given(st.integers(0, 3000))
def test_the_wanted_size_has_room_for_all_keys(count: int) -> None:
    newest = KeyMap(bytes_wanted(count))
    assert all(newest.put(b"%d" % n, n) for n in range(count))


def test_no_short_key_can_be_taken_for_a_long_one() -> None:
    # A short key is stored itself, a long one as its digest: the two must never be equal.
    for n in range(2000):
        long = b"customer-address-%06d" % n
        for short in (blake2b(long, digest_size=16).digest()[:15], blake2b(long, digest_size=15).digest()):
            newest = KeyMap(24 * 64)
            newest.put(long, 1)
            assert newest.newest(short) == -1
