"""The login of nodes: a connection counts as node N once it has proved, by SCRAM, to know the secret of `__node-N`.

All nodes of a cluster share one secret. The password of a node is derived from it, so a node can check a login without
any metadata, even before it has joined its cluster:

    password of node N  =  HMAC(secret, "password __node-N")        salt  =  HMAC(secret, "salt __node-N")

A client needs no login. It stays `User:ANONYMOUS`, and the access table refuses every request in which it acts for a
node. A client id proves nothing: any client can choose one.
"""

import hmac
import logging
import re
import secrets
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from minibroker.client.connection import Step
from minibroker.client.errors import BrokerError, LoginFailed
from minibroker.partitions.rare_warning import RareWarning
from minibroker.partitions.registry import ANONYMOUS, Answer, Call, Principal, Registry, Session
from minibroker.partitions.waiting import Wait
from minibroker.replicas.scram import (
    ITERATIONS_MIN,
    MECHANISM,
    Credential,
    ScramClient,
    ScramFailed,
    ScramServer,
    credential,
    salted_password,
)
from minibroker.replication.keys import CLUSTER_SECRET_FILE
from minibroker.replication.tables.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from minibroker.replication.tables.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

SECRETS_DIFFER = f"its secret differs: compare the files of {CLUSTER_SECRET_FILE.name} on both nodes"
_HANDSHAKE_VERSION = _AUTHENTICATE_VERSION = 1
_NONCE_BYTES = 24
_SALT_BYTES = 16
_CREDENTIALS_MAX = 1024
# A wrong guess is answered late, so that guessing takes long.
_REFUSED_AFTER_MS = 100
_NODE = re.compile("__node-(0|[1-9][0-9]{0,9})").fullmatch


def name_of(node_id: int) -> str:
    """The user name of a node."""
    return f"__node-{node_id}"


def node_named(name: str) -> int | None:
    """The id of the node with this user name; None if it is not the user name of a node."""
    found = _NODE(name)
    return None if found is None else int(found[1])


class NodeCredentials:
    """The passwords of all nodes, derived from the secret of their cluster."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        # Salting a password takes 2 ms, so the salted password of each node is kept, also that of this node.
        self.salted = lru_cache(_CREDENTIALS_MAX)(self._salted)

    def password(self, name: str) -> str:
        """The password of a node, which any SCRAM client can use."""
        return self._derived(f"password {name}").hex()

    def salt(self, name: str) -> bytes:
        """The salt of a user name. All nodes compute the same salt for it, and it reveals nothing of the secret."""
        return self._derived(f"salt {name}")[:_SALT_BYTES]

    def _salted(self, name: str) -> bytes:
        return salted_password(self.password(name).encode(), self.salt(name), ITERATIONS_MIN)

    def credential(self, name: str) -> Credential:
        """The keys to check a login. For a name that is not a node's, they are empty, and no password fits them."""
        if node_named(name) is None:
            return Credential(self.salt(name), ITERATIONS_MIN, b"", b"")
        return credential(self.salted(name), self.salt(name), ITERATIONS_MIN)

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self._secret, purpose.encode(), "sha256")


# At the node that connects --------------------------------------------------------------------------------------------


def log_in(credentials: NodeCredentials, node_id: int) -> Generator[Step, Any, None]:
    """Chapter 03's `Authenticator`: log in as a node. Raises `LoginFailed` if the other node refuses."""
    name = name_of(node_id)

    def salted(salt: bytes, iterations: int) -> bytes:
        # A node with the same secret uses the same salt. If the other node sends another salt, use an empty salted
        # password. The other node refuses that login and logs a warning, so that its operator learns of the problem.
        is_same = (salt, iterations) == (credentials.salt(name), ITERATIONS_MIN)
        return credentials.salted(name) if is_same else b""

    scram = ScramClient(name, secrets.token_urlsafe(_NONCE_BYTES), salted)
    response = yield Step(SaslHandshakeRequest(mechanism=MECHANISM), _HANDSHAKE_VERSION)
    if response.error_code:
        raise LoginFailed(str(BrokerError(response.error_code)))
    try:
        server_first = yield from _exchanged(scram.first())
        server_final = yield from _exchanged(scram.final(server_first))
        scram.check(server_final)
    except ScramFailed as error:
        raise LoginFailed(SECRETS_DIFFER) from error


def _exchanged(message: bytes) -> Generator[Step, Any, bytes]:
    response = yield Step(SaslAuthenticateRequest(auth_bytes=message), _AUTHENTICATE_VERSION)
    if response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        raise LoginFailed(SECRETS_DIFFER)
    if response.error_code:
        raise LoginFailed(str(BrokerError(response.error_code, response.error_message)))
    return bytes(response.auth_bytes)


# At the node that is asked --------------------------------------------------------------------------------------------


class Logins:
    """Both sides of the logins of one node: the handlers, and the authenticator for its own connections."""

    def __init__(self, node_id: int, secret: Callable[[], bytes]) -> None:
        """`open` calls `secret` to read the secret of the cluster."""
        self._node_id = node_id
        self._secret = secret
        self._under_way: WeakKeyDictionary[Session, ScramServer] = WeakKeyDictionary()
        self._warning = RareWarning(log)

    def open(self) -> None:
        """Read the secret. Raises `BrokerFailure` if there is none that can be used."""
        self.credentials = NodeCredentials(self._secret())

    def authenticator(self) -> Generator[Step, Any, None]:
        """Begin to log in at another node."""
        return log_in(self.credentials, self._node_id)

    def add_handlers(self, registry: Registry) -> None:
        """Serve the two APIs of a login.

        Version 0 of SaslHandshake is not served, because messages without a header would follow it.
        """
        registry.add(ApiKey.SASL_HANDSHAKE, self.on_handshake, versions=(1, 1))
        registry.add(ApiKey.SASL_AUTHENTICATE, self.on_authenticate)

    def on_handshake(self, call: Call[SaslHandshakeRequest]) -> Answer:
        """The handler of SaslHandshake. A connection logs in once, and never becomes another principal."""
        session, code = call.session, ErrorCode.NONE
        if session.principal is not ANONYMOUS or session in self._under_way:
            code = ErrorCode.ILLEGAL_SASL_STATE
        elif call.request.mechanism != MECHANISM:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            self._under_way[session] = ScramServer(secrets.token_urlsafe(_NONCE_BYTES), self.credentials.credential)
        session.is_over = code is not ErrorCode.NONE
        return SaslHandshakeResponse(error_code=code, mechanisms=[MECHANISM])

    def on_authenticate(self, call: Call[SaslAuthenticateRequest]) -> Answer:
        """The handler of SaslAuthenticate. A login that fails closes the connection."""
        session = call.session
        scram = self._under_way.get(session)
        if scram is None:
            session.is_over = True
            code = ErrorCode.ILLEGAL_SASL_STATE
            return SaslAuthenticateResponse(error_code=code, error_message=code.message)
        try:
            message = scram.answer(bytes(call.request.auth_bytes))
        except ScramFailed:
            return self._refused(call, scram)
        if scram.is_complete:
            del self._under_way[session]
            session.principal = Principal("User", scram.user)
            session.node_id = node_named(scram.user)
            session.needs_login = False
        return SaslAuthenticateResponse(auth_bytes=message)

    def _refused(self, call: Call[SaslAuthenticateRequest], scram: ScramServer) -> Answer:
        """The answer is the same for every cause, so that a stranger learns nothing from it."""
        call.session.is_over = True
        node_id, at = node_named(scram.user), f"at node {self._node_id}, from {call.session.peer}"
        who = f"node {node_id} could not log in {at}: {SECRETS_DIFFER}"
        self._warning.say(call.now_ms, who if node_id is not None else f"a client could not log in {at}")
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        response = SaslAuthenticateResponse(error_code=code, error_message=code.message)
        return Wait(keys=(), timeout_ms=_REFUSED_AFTER_MS, attempt=lambda: None, expire=lambda: response)
