"""The pages about the protocol match the tables."""

import subprocess
import sys
from pathlib import Path

from minibroker.cli.protocol_pages import pages
from minibroker.wire.apis import APIS
from minibroker.wire.schema import Message

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "protocol"
REMAKE = "run: python -m minibroker.cli.protocol_pages docs/reference/protocol"


def test_the_pages_are_those_that_the_command_makes_of_the_tables(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "minibroker.cli.protocol_pages", tmp_path], check=True, timeout=60)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {path.name for path in PAGES.iterdir()} == set(made), REMAKE
    for name, text in made.items():
        assert (PAGES / name).read_text() == text, f"{name}: {REMAKE}"


def test_there_is_a_page_for_every_api_and_a_line_for_every_field() -> None:
    made = pages()
    assert len(made) == len(APIS) + 1
    everything = "\n".join(made.values())
    for api in APIS.values():
        messages: list[type[Message]] = [api.request, api.response]
        for message in messages:
            assert f"## {message.__name__}\n" in everything
            for field in message.schema.fields:
                assert f"| `{field.name}` |" in everything


def test_each_page_shows_a_request_and_its_response_byte_by_byte() -> None:
    made = pages()
    for name, text in made.items():
        if name != "index.md":
            example = text.partition("## Example")[2]
            for part in ("api_key: int16", 'client_id: string = "demo"', " request: ", " response: ", "correlation_id"):
                assert part in example, f"{name} has no {part}"
    assert "batch: RecordBatch = 1 record, offsets 0 to 0" in made["produce.md"]
