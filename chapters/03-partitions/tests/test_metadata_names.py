"""Valid and invalid names of topics, and names that collide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_model import case

from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.names import can_collide, check_topic_name, collision_key, is_internal

LEGAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@given(st.text(LEGAL, min_size=1, max_size=249).filter(lambda name: name not in (".", "..")))
def test_any_legal_characters_make_a_name(name: str) -> None:
    check_topic_name(name)


def test_an_invalid_topic_name_is_refused() -> None:
    for name in ["", ".", "..", "a/b", "../x", "a\0b", "a b", "a\n", "ä", "１", "a:b", "x" * 250]:
        with case(name), pytest.raises(InvalidTopicName):
            check_topic_name(name)


def test_a_name_has_at_most_249_characters() -> None:
    check_topic_name("x" * 249)
    with pytest.raises(InvalidTopicName, match="250 characters, but only 249 are allowed"):
        check_topic_name("x" * 250)


def test_three_dots_are_a_valid_name() -> None:
    check_topic_name("...")


@given(st.text(min_size=1, max_size=300))
def test_a_refusal_can_be_printed_and_is_short(name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        assert str(error).isprintable()
        assert len(str(error)) < 1000


def test_names_that_differ_only_in_dot_and_underscore_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") == collision_key("a_b_c")
    assert collision_key("a-b") != collision_key("a_b")
    assert can_collide("a.b")
    assert can_collide("a_b")
    assert not can_collide("a-b")


def test_topics_with_the_brokers_state_are_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__cluster_metadata")
    assert not is_internal("orders")
