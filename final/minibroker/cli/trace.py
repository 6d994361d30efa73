"""Prints every request and every response as a tree of fields with their bytes, for `minibroker serve --trace`.

A broker that traces is slow.
"""

from typing import TextIO

from minibroker.cli.frame_tree import explain_request, explain_response, render
from minibroker.log.interfaces import FileSlice
from minibroker.wire.errors import WireError
from minibroker.wire.headers import read_request_header
from minibroker.wire.schema import Part

_PREFIX_BYTES = 4


class Trace:
    """Prints each request and each response of the server."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def on_request(self, peer: str, frame: memoryview) -> None:
        """Print a request."""
        try:
            lines = render(explain_request(frame), frame)
        except WireError as error:
            lines = [f"cannot be decoded: {error}", bytes(frame[:64]).hex(" ")]
        self._print(f"{peer} ──▶ request, {len(frame)} bytes", lines)

    def on_reply(self, peer: str, frame: memoryview, parts: list[Part]) -> None:
        """Print the response to the request in `frame`."""
        if not parts:
            self._print(f"{peer} ◀── no response (acks=0)", [])
            return
        answer = memoryview(b"".join(_bytes(part) for part in parts))[_PREFIX_BYTES:]
        try:
            header, _position = read_request_header(frame)
            lines = render(explain_response(header.api_key, header.api_version, answer), answer)
        except WireError as error:
            lines = [f"cannot be decoded: {error}", bytes(answer[:64]).hex(" ")]
        self._print(f"{peer} ◀── response, {len(answer)} bytes", lines)

    def _print(self, title: str, lines: list[str]) -> None:
        self._out.write("\n".join([title, *(f"  {line}" for line in lines), "", ""]))
        self._out.flush()


def _bytes(part: Part) -> bytes:
    return part.read() if isinstance(part, FileSlice) else bytes(part)
