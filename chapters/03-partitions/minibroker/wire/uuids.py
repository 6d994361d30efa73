"""Ids, such as topic ids: sixteen bytes, shown by Kafka's tools as 22 characters. A pure module."""

import base64
import binascii

from minibroker.wire.errors import WireError

UUID_SIZE = 16
NO_UUID = bytes(UUID_SIZE)


def uuid_text(uuid: bytes) -> str:
    """Write an id as Kafka does: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """Undo `uuid_text`."""
    try:
        uuid = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError) as error:
        raise WireError(f"{text!r} is not an id: {error}") from error
    # Base64 decoding is lenient: it skips foreign characters, and several texts decode to the same bytes. So encode the
    # id again, and compare.
    if len(uuid) != UUID_SIZE or uuid_text(uuid) != text:
        raise WireError(f"{text!r} is not an id: an id is 22 characters for {UUID_SIZE} bytes")
    return uuid
