"""Addresses are parsed from their text, and invalid ones are refused with an example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.addresses import Address, parse_address
from minibroker.client.errors import InvalidAddress


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.just("::1"), st.integers(1, 65535))
def test_an_address_is_parsed_from_its_text(host: str, port: int) -> None:
    assert parse_address(str(Address(host, port))) == Address(host, port)


def test_an_invalid_address_is_refused_and_quoted_with_an_example() -> None:
    for text in ("", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "host:-1"):
        with pytest.raises(InvalidAddress, match=rf"^{text!r} .*127\.0\.0\.1:9092"):
            parse_address(text)
