"""SCRAM-SHA-256 (RFC 5802, RFC 7677): both sides prove that they know a password, and neither sends it. A pure module.

    client first    n,,n=USER,r=NONCE                          its user, and a random text
    server first    r=NONCE+MORE,s=SALT,i=ITERATIONS           how it has salted the password
    client final    c=biws,r=NONCE+MORE,p=PROOF                a proof that fits these two nonces only
    server final    v=SIGNATURE                                the server's own proof

An eavesdropper sees no password, and cannot use a proof again. A server stores two keys, which are not enough to log
in. The nonces are inputs. There is no channel binding: `n,,` says so, and `biws` is the base64 of `n,,`.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import NamedTuple

from minibroker.log.errors import ExpectedError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384
_NO_BINDING = "n,,"
_MESSAGE_BYTES_MAX = 4096  # many times the largest message of a login; the sender has not logged in yet


class ScramFailed(ExpectedError):
    """The other side does not know the password, or its message is malformed. It must not learn which."""


class Credential(NamedTuple):
    """What a server knows of a user."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted_password(password: bytes, salt: bytes, iterations: int) -> bytes:
    """`Hi` of the RFC. It is slow on purpose: about 2 ms for 4,096 iterations."""
    return hashlib.pbkdf2_hmac("sha256", password, salt, iterations)


def credential(salted: bytes, salt: bytes, iterations: int) -> Credential:
    """The keys that belong to a salted password."""
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return Credential(salt, iterations, stored_key, _hmac(salted, b"Server Key"))


class ScramClient:
    """One login at the client. `salted` salts its password."""

    def __init__(self, user: str, nonce: str, salted: Callable[[bytes, int], bytes]) -> None:
        self._nonce = nonce
        self._salted = salted
        self._bare = f"n={_escaped(user)},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The first message."""
        return f"{_NO_BINDING}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The final message. Its proof answers the server's first message."""
        fields = _fields(_text(server_first))
        nonce, salt, iterations = fields.get("r", ""), _decoded(fields.get("s", "")), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramFailed("the server's nonce does not begin with the client's")
        if not iterations.isdecimal() or not ITERATIONS_MIN <= int(iterations[:9]) <= ITERATIONS_MAX:
            raise ScramFailed(f"{iterations[:20]!r} iterations are not between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
        without_proof = f"c={_encoded(_NO_BINDING.encode())},r={nonce}"
        signed = f"{self._bare},{_text(server_first)},{without_proof}".encode()
        salted = self._salted(salt, int(iterations))
        client_key = _hmac(salted, b"Client Key")
        proof = _xor(client_key, _hmac(hashlib.sha256(client_key).digest(), signed))
        self._signature = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={_encoded(proof)}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise unless the server has proved that it knows the password, too."""
        found = _decoded(_fields(_text(server_final)).get("v", ""))
        if not hmac.compare_digest(found, self._signature):
            raise ScramFailed("the server does not know the password")


class ScramServer:
    """One login at the server.

    `credential_of` returns a credential for every name, so that a client cannot find out which names exist.
    """

    def __init__(self, nonce: str, credential_of: Callable[[str], Credential]) -> None:
        self._nonce = nonce
        self._credential_of = credential_of
        self._header = self._bare = self._first = ""
        self.user = ""
        """The user name that the client claims. It is proved once `is_complete` is True."""
        self.is_complete = False

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's next message; raises `ScramFailed` if the login has failed."""
        return self._on_final(_text(message)) if self._first else self._on_first(_text(message))

    def _on_first(self, message: str) -> bytes:
        binding, authorized, self._bare = [*message.split(",", 2), "", ""][:3]
        fields = _fields(self._bare)
        # The first part is `n` if the client does not support channel binding, or `y` if it does, but believes that the
        # server does not. The second part would ask to act as another user, and must be empty. A field `m` is a
        # mandatory extension, and this server supports none.
        if binding not in ("n", "y") or authorized or "m" in fields or not fields.get("n") or not fields.get("r"):
            raise ScramFailed("the client's first message is malformed")
        self._header, self.user = f"{binding},,", _unescaped(fields["n"])
        self._known = self._credential_of(self.user)
        self._nonce = fields["r"] + self._nonce
        self._first = f"r={self._nonce},s={_encoded(self._known.salt)},i={self._known.iterations}"
        return self._first.encode()

    def _on_final(self, message: str) -> bytes:
        # The proof is the last field, and it covers everything before it. The message must repeat both nonces and the
        # header of the first message, and a login is completed once.
        without_proof, _, proof_text = message.rpartition(",p=")
        fields, proof = _fields(without_proof), _decoded(proof_text)
        is_same = hmac.compare_digest(fields.get("r", "").encode(), self._nonce.encode())
        if self.is_complete or not is_same or _decoded(fields.get("c", "")) != self._header.encode():
            raise ScramFailed("the client's final message does not fit its first one")
        # The signed text has all messages so far: the client's first, the server's first, and this one up to its proof.
        signed = f"{self._bare},{self._first},{without_proof}".encode()
        # The proof is the client key XOR a signature, which is made with the stored key. So the server can make the
        # same signature, and gets the client key back. The hash of the client key must be the stored key.
        client_key = _xor(proof, _hmac(self._known.stored_key, signed))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._known.stored_key):
            raise ScramFailed("the client does not know the password")
        # The answer proves that the server knows the password, too: it signs the same text with the server key.
        self.is_complete = True
        return f"v={_encoded(_hmac(self._known.server_key, signed))}".encode()


# Fields of a message --------------------------------------------------------------------------------------------------


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise ScramFailed(f"a message has {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ScramFailed("a message is not UTF-8") from error


def _fields(text: str) -> Mapping[str, str]:
    """The fields `x=value`. A field that occurs twice is refused, because its value is ambiguous."""
    pairs = [it.partition("=")[::2] for it in text.split(",")]
    if len(dict(pairs)) != len(pairs):
        raise ScramFailed("a field occurs twice")
    return dict(pairs)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramFailed("a field is not base64") from error


def _escaped(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescaped(text: str) -> str:
    if text.count("=") != text.count("=2C") + text.count("=3D"):
        raise ScramFailed("a user name has a character that must be escaped")
    return text.replace("=2C", ",").replace("=3D", "=")


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise ScramFailed("a proof has a wrong length")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
