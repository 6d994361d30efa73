"""Which names a topic may have, and which two may not stand beside each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.names import can_collide, check_topic_name, collision_key, is_internal

LEGAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@given(st.text(LEGAL, min_size=1, max_size=249).filter(lambda name: name not in (".", "..")))
def test_any_legal_characters_make_a_name(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b", "a b", "a\n", "ä", "１", "a:b", "x" * 250])
def test_a_name_that_is_no_directory_name_of_kafkas_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


def test_249_characters_are_the_most() -> None:
    check_topic_name("x" * 249)
    with pytest.raises(InvalidTopicName, match="250 characters, 249 are allowed"):
        check_topic_name("x" * 250)


def test_dots_alone_are_a_name_from_three_on() -> None:
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


def test_the_brokers_own_topics_are_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__cluster_metadata")
    assert not is_internal("orders")
