"""An address is read as it is written, and what is none is refused with an example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.addresses import Address, parse_address
from minibroker.client.errors import InvalidAddress


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.just("::1"), st.integers(1, 65535))
def test_an_address_is_what_it_was_written_from(host: str, port: int) -> None:
    assert parse_address(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidAddress, match=r"127\.0\.0\.1:9092"):
        parse_address(text)
