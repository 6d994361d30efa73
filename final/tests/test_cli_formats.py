"""Claims about the formats of `minibroker consume`, and about reading configuration files."""

import json
import re
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.cli.formats import InvalidFormat, compile_format
from minibroker.cli.properties import parse_properties, read_properties
from minibroker.log.record import Record

RECORD = Record(offset=41, timestamp=1_700_000_000_000, key=b"k1", value=b"v1")


def shown(text: str, record: Record = RECORD) -> bytes:
    return compile_format(text)("orders", 2, record)


def test_each_verb_and_escape_is_written_as_kcat_writes_it() -> None:
    expected = {
        "%t": b"orders",
        "%p": b"2",
        "%o": b"41",
        "%T": b"1700000000000",
        "%k=%v": b"k1=v1",
        "%s": b"v1",
        "%K %S %V": b"2 2 2",
        "100%%": b"100%",
        r"a\tb\n\r\0\\\x41": b"a\tb\n\r\0\\A",
        "Größe %o\n": "Größe 41\n".encode(),
        "": b"",
    }
    assert {text: shown(text) for text in expected} == expected


def test_a_null_is_written_as_nothing_and_its_length_as_minus_one() -> None:
    assert shown("[%k|%v] %K %V %S", RECORD._replace(key=None, value=None)) == b"[|] -1 -1 -1"
    assert shown("[%k|%v] %K %V", RECORD._replace(key=b"", value=b"")) == b"[|] 0 0"


def test_headers_are_pairs_between_commas() -> None:
    headers: list[tuple[str, bytes | None]] = [("trace_id", b"7"), ("empty", b""), ("none", None)]
    assert shown("%h", RECORD._replace(headers=headers)) == b"trace_id=7,empty=,none=NULL"
    assert shown("%h") == b""


@given(st.binary(), st.binary())
def test_keys_and_values_are_written_byte_for_byte(key: bytes, value: bytes) -> None:
    assert shown("%k%v", RECORD._replace(key=key, value=value)) == key + value


@given(st.text().filter(lambda text: text != "json"))
def test_any_text_is_a_format_or_is_refused(text: str) -> None:
    try:
        assert isinstance(shown(text), bytes)
    except (InvalidFormat, UnicodeEncodeError):
        assert re.search(r"[%\\]|[\ud800-\udfff]", text)


def test_the_error_for_an_invalid_format_names_the_part_that_is_wrong() -> None:
    for text, named in (("%x", "%x"), ("50%", "%"), (r"\q", r"\q"), ("a\\", "\\"), (r"\x4", r"\x")):
        with pytest.raises(InvalidFormat) as refused:
            compile_format(text)
        assert named in str(refused.value), text


def test_json_is_one_object_per_line_and_bytes_that_are_not_utf_8_are_in_base64() -> None:
    headers: list[tuple[str, bytes | None]] = [("h", None)]
    line = shown("json", RECORD._replace(key=None, value=b"\xff", headers=headers))
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp": 1_700_000_000_000,
        "key": None,
        "value_base64": "/w==",
        "headers": [{"name": "h", "value": None}],
    }


# Configuration files.

SERVER_PROPERTIES = r"""
# a broker
! so is this
node.id=1
listeners = PLAINTEXT://127.0.0.1:9092
log.dirs : data
num.partitions 3
log.retention.ms=
advertised.listeners=PLAINTEXT://a:1,\
    PLAINTEXT://b:2
broker.rack=r
"""


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    assert parse_properties("server.properties", SERVER_PROPERTIES).values == {
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.dirs": "data",
        "num.partitions": "3",
        "log.retention.ms": "",
        "advertised.listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2",
        "broker.rack": "r",
    }


def test_every_setting_knows_its_line() -> None:
    found = parse_properties("server.properties", SERVER_PROPERTIES)
    assert found.where("advertised.listeners") == "server.properties:9"
    assert found.where("broker.rack") == "server.properties:11"


def test_a_setting_given_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(click.ClickException, match=re.escape("x.properties:3: a is set twice, first in line 1")):
        parse_properties("x.properties", "a=1\nb=2\na=1\n")


def test_a_line_that_is_not_a_setting_is_refused_with_its_number() -> None:
    with pytest.raises(click.ClickException, match=re.escape("x.properties:2: 'nonsense' is not a setting")):
        parse_properties("x.properties", "a=1\nnonsense\n")


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z.]{0,20}", fullmatch=True), st.from_regex(r"[!-\[\]-~]{0,20}", fullmatch=True)
    )
)
def test_settings_written_as_name_and_value_are_read_back(settings: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    # A value may begin with a separator character; only the first one separates.
    assert parse_properties("p", text).values == settings


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(dict(parse_properties("p", text).values), dict)
    except click.ClickException as error:
        assert error.message.startswith("p:")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\xff\n")
    with pytest.raises(click.ClickException, match="not a text file"):
        read_properties(str(path))
