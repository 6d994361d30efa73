"""The login of nodes, both sides, without a socket: who becomes which node, and which steps end the connection."""

import os
from pathlib import Path
from typing import Any

import pytest
from cases import case

from minibroker.client.connection import Step
from minibroker.client.errors import LoginFailed
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.registry import ANONYMOUS, Call, Principal, Session
from minibroker.partitions.waiting import Wait
from minibroker.replicas.login import Logins, NodeCredentials, log_in, node_named
from minibroker.replicas.scram import ScramClient, salted_password
from minibroker.replicas.secret import SECRET, is_loopback, make_secret, read_secret, secret_of
from minibroker.replication.tables.sasl_authenticate import SaslAuthenticateRequest
from minibroker.replication.tables.sasl_handshake import SaslHandshakeRequest
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request

SECRET_TEXT = b"a secret of more than 32 bytes, for tests"


def at_node_1(secret: bytes = SECRET_TEXT) -> Logins:
    logins = Logins(1, lambda: secret)
    logins.open()
    return logins


def ask(logins: Logins, session: Session, request: Request) -> Any:
    assert request.schema.key is not None
    call: Call[Any] = Call(request, 1, RequestHeader(request.schema.key, 1, 0, None), 0, session)
    is_first = isinstance(request, SaslHandshakeRequest)
    answer = logins.on_handshake(call) if is_first else logins.on_authenticate(call)
    # A refusal comes late.
    return answer.expire() if isinstance(answer, Wait) else answer


def log_in_at(logins: Logins, session: Session, node_id: int, secret: bytes = SECRET_TEXT) -> None:
    login = log_in(NodeCredentials(secret), node_id)
    try:
        step: Step = next(login)
        while True:
            step = login.send(ask(logins, session, step.message))
    except StopIteration:
        return


def test_a_node_that_knows_the_secret_becomes_its_principal() -> None:
    for node_id in (0, 2, 2**31 - 1):
        with case(node_id):
            session = Session("peer")
            log_in_at(at_node_1(), session, node_id)
            assert (session.node_id, session.principal) == (node_id, Principal("User", f"__node-{node_id}"))
            assert not session.is_over


def test_a_node_with_another_secret_is_told_so_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    logins, session = at_node_1(), Session("192.0.2.7:5000")
    words = r"its secret differs: compare the files of minibroker\.cluster\.secret\.file"
    with pytest.raises(LoginFailed, match=words):
        log_in_at(logins, session, 2, SECRET_TEXT + b"x")
    assert "node 2 could not log in at node 1, from 192.0.2.7:5000: its secret differs" in caplog.text
    assert (session.node_id, session.principal, session.is_over) == (None, ANONYMOUS, True)
    # A client can repeat this for ever, so it is not logged again at once.
    with pytest.raises(LoginFailed):
        log_in_at(logins, Session("192.0.2.7:5001"), 2, SECRET_TEXT + b"x")
    assert caplog.text.count("could not log in") == 1


def test_every_failed_login_gets_the_same_answer_late() -> None:
    answers = []
    for user in ("__node-2", "__node-02", "__node-x", "admin", "__minibroker-node-2"):
        logins, session = at_node_1(), Session("peer")
        scram = ScramClient(user, "nonce", lambda salt, iterations: salted_password(b"guess", salt, iterations))
        ask(logins, session, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        first = ask(logins, session, SaslAuthenticateRequest(auth_bytes=scram.first()))
        assert first.error_code == ErrorCode.NONE, f"the name {user} can be probed"
        request = SaslAuthenticateRequest(auth_bytes=scram.final(first.auth_bytes))
        header = RequestHeader(36, 1, 0, None)
        answer = logins.on_authenticate(Call(request, 1, header, 0, session))
        assert isinstance(answer, Wait)
        answers.append((answer.timeout_ms, answer.expire().encode(1), session.is_over, session.node_id))
    assert set(answers) == {(100, answers[0][1], True, None)}


def test_a_connection_logs_in_once_and_in_order() -> None:
    handshake = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
    message = SaslAuthenticateRequest(auth_bytes=b"n,,n=__node-2,r=x")
    illegal, unsupported = ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.UNSUPPORTED_SASL_MECHANISM
    cases: dict[str, tuple[list[Request], ErrorCode]] = {
        "no handshake": ([message], illegal),
        "two handshakes": ([handshake, handshake], illegal),
        "another mechanism": ([SaslHandshakeRequest(mechanism="PLAIN")], unsupported),
    }
    for name, (requests, code) in cases.items():
        with case(name):
            logins, session = at_node_1(), Session("peer")
            answers = [ask(logins, session, request) for request in requests]
            assert (answers[-1].error_code, session.is_over, session.node_id) == (code, True, None)
    logins, session = at_node_1(), Session("peer")
    log_in_at(logins, session, 2)
    assert ask(logins, session, handshake).error_code == illegal
    # It stays the node that it was until its end.
    assert (session.node_id, session.is_over) == (2, True)


def test_only_the_name_of_a_node_is_a_node() -> None:
    assert [node_named(it) for it in ("__node-0", "__node-17", "__node-2147483647")] == [0, 17, 2**31 - 1]
    others = (
        "",
        "17",
        "node-17",
        "__node-",
        "__node-017",
        "__node-1 ",
        "x__node-1",
        "__node-1\n",
        "__node-" + "9" * 50,
    )
    assert [it for it in others if node_named(it) is not None] == []


# The secret file


def config(data: Path, **settings: str) -> NodeConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return NodeConfig({"node.id": "1", "log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0"} | named)


def test_nodes_on_one_machine_make_one_secret_and_share_it(tmp_path: Path) -> None:
    voters = {"controller_quorum_voters": "1@127.0.0.1:9092,2@localhost:9093,3@[::1]:9094"}
    found = {secret_of(config(tmp_path / f"{it}", **voters), is_alone=False) for it in (1, 2, 3)}
    assert found == {read_secret(str(tmp_path / SECRET))}
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [SECRET]
    # A node alone has its own, and keeps it when it names voters later.
    alone = tmp_path / "alone"
    alone.mkdir()
    own = secret_of(config(alone), is_alone=True)
    assert own not in found
    assert secret_of(config(alone, **voters), is_alone=False) == own


def test_a_node_of_several_machines_needs_a_secret_file(tmp_path: Path) -> None:
    cases = {
        "a voter on another machine": {"controller_quorum_voters": "1@127.0.0.1:9092,2@192.0.2.2:9092"},
        "a voter with a name": {"controller_quorum_voters": "1@one.example:9092"},
        "an advertised listener": {
            "controller_quorum_voters": "1@127.0.0.1:9092",
            "advertised_listeners": "PLAINTEXT://192.0.2.1:9092",
        },
    }
    path = tmp_path / "shared"
    path.write_bytes(SECRET_TEXT + b"\n")
    path.chmod(0o600)
    for name, settings in cases.items():
        with case(name):
            with pytest.raises(BrokerFailure, match=r"openssl rand -hex 32 > FILE && chmod 600 FILE"):
                secret_of(config(tmp_path / "1", **settings), is_alone=False)
            named = NodeConfig(
                {**config(tmp_path / "1", **settings).settings, "minibroker.cluster.secret.file": str(path)}
            )
            assert secret_of(named, is_alone=False) == SECRET_TEXT
    assert sorted(os.listdir(tmp_path)) == ["shared"]


def test_a_secret_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(BrokerFailure, match="cannot be read"):
        read_secret(str(path))
    for text, mode, words in (
        (SECRET_TEXT, 0o640, "chmod 600"),
        (SECRET_TEXT, 0o604, "chmod 600"),
        (b"x" * 31, 0o600, "31 bytes"),
    ):
        with case(f"{len(text)} bytes, mode {mode:o}"):
            path.write_bytes(text + b"\n")
            path.chmod(mode)
            with pytest.raises(BrokerFailure, match=words) as failure:
                read_secret(str(path))
            assert "\n" not in str(failure.value)
            # A file that exists is never replaced.
            make_secret(str(path))
            assert path.read_bytes() == text + b"\n"


def test_a_name_is_not_taken_for_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "192.0.2.1", "localhost.example", "node1")))
