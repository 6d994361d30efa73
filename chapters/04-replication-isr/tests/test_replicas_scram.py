"""SCRAM-SHA-256: the exchange of RFC 7677, and every message that must be refused."""

import base64
import hashlib
import hmac

import pytest
from aiokafka.conn import ScramAuthenticator
from cases import case

from minibroker.replicas.scram import ScramClient, ScramFailed, ScramServer, credential, salted_password

# RFC 7677, section 3.
USER, PASSWORD = "user", b"pencil"
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT, ITERATIONS = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096
EXCHANGE = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
KNOWN = credential(salted_password(PASSWORD, SALT, ITERATIONS), SALT, ITERATIONS)


def client(user: str = USER, password: bytes = PASSWORD) -> ScramClient:
    return ScramClient(user, CLIENT_NONCE, lambda salt, iterations: salted_password(password, salt, iterations))


def server() -> ScramServer:
    return ScramServer(SERVER_NONCE, lambda _user: KNOWN)


def test_both_sides_send_the_messages_of_the_rfc() -> None:
    here, there = client(), server()
    assert here.first() == EXCHANGE[0]
    assert there.answer(EXCHANGE[0]) == EXCHANGE[1]
    assert here.final(EXCHANGE[1]) == EXCHANGE[2]
    assert not there.is_complete
    assert there.answer(EXCHANGE[2]) == EXCHANGE[3]
    here.check(EXCHANGE[3])
    assert (there.user, there.is_complete) == (USER, True)


def test_a_stock_client_logs_in() -> None:
    there = server()
    theirs = ScramAuthenticator(
        loop=None,
        sasl_plain_username="user",
        sasl_plain_password=PASSWORD.decode(),
        sasl_mechanism="SCRAM-SHA-256",
    ).authenticator_scram()
    message, _expects_answer = next(theirs)
    message, _expects_answer = theirs.send(there.answer(message))
    # It ends once it has checked the server's signature.
    with pytest.raises(StopIteration):
        theirs.send(there.answer(message))
    assert there.user == USER


def test_a_user_name_may_have_any_character() -> None:
    for user in ("a,b", "a=b", "=2C", "älice,=3D"):
        with case(user):
            here, there = client(user), server()
            here.check(there.answer(here.final(there.answer(here.first()))))
            assert there.user == user


def test_the_server_refuses_a_malformed_first_message() -> None:
    messages = (
        *(b"", b"n", b"n,,", b"\xff", b"p=tls-unique,,n=user,r=x", b"n,a=other,n=user,r=x", b"n,,m=x,n=user,r=x"),
        *(
            b"n,,n=,r=x",
            b"n,,n=user",
            b"n,,n=user,r=",
            b"n,,n=us=er,r=x",
            b"n,,n=user,r=x,r=y",
            b"n,,n=user,n=root,r=x",
            b"n,,n=user,r=" + b"x" * 4096,
        ),
    )
    for message in messages:
        with case(message), pytest.raises(ScramFailed):
            server().answer(message)


def altered(final: bytes, **changes: str) -> bytes:
    fields = dict(it.split("=", 1) for it in final.decode().split(",")) | changes
    return ",".join(f"{key}={value}" for key, value in fields.items()).encode()


def test_the_server_refuses_a_final_message_that_proves_nothing() -> None:
    nonce, zeros = CLIENT_NONCE + SERVER_NONCE, base64.b64encode(bytes(32)).decode()
    messages = {
        "another proof": altered(EXCHANGE[2], p=zeros),
        "a short proof": altered(EXCHANGE[2], p="AAAA"),
        "no base64": altered(EXCHANGE[2], p="?"),
        "no proof": EXCHANGE[2].rpartition(b",p=")[0],
        # Kafka compared only the end of the nonce (CVE-2024-56128).
        "half of the nonce": altered(EXCHANGE[2], r=SERVER_NONCE),
        "the client's nonce": altered(EXCHANGE[2], r=CLIENT_NONCE),
        "a longer nonce": altered(EXCHANGE[2], r=f"{nonce}x"),
        "another binding": altered(EXCHANGE[2], c=base64.b64encode(b"y,,").decode()),
        "no text": b"\xff",
    }
    for name, message in messages.items():
        with case(name):
            there = server()
            there.answer(EXCHANGE[0])
            with pytest.raises(ScramFailed):
                there.answer(message)
            assert not there.is_complete


def test_a_proof_is_used_once_and_only_for_its_nonces() -> None:
    there = server()
    for message in (EXCHANGE[0], EXCHANGE[2]):
        there.answer(message)
    with pytest.raises(ScramFailed):
        there.answer(EXCHANGE[2])
    other = ScramServer("another nonce", lambda _user: KNOWN)
    other.answer(EXCHANGE[0])
    with pytest.raises(ScramFailed):
        other.answer(EXCHANGE[2])


def test_the_client_refuses_a_server_that_does_not_know_the_password() -> None:
    salt = "s=W22ZaJ0SNY7soEsUEjb6gQ=="
    firsts = {
        "its own nonce": f"r=another,{salt},i=4096",
        "no more than the client's nonce": f"r={CLIENT_NONCE},{salt},i=4096",
        "too few iterations": f"r={CLIENT_NONCE}x,{salt},i=4095",
        "iterations without end": f"r={CLIENT_NONCE}x,{salt},i=4000000000",
        "no number": f"r={CLIENT_NONCE}x,{salt},i=-1",
        "no salt": f"r={CLIENT_NONCE}x,s=?,i=4096",
    }
    for name, message in firsts.items():
        with case(name), pytest.raises(ScramFailed):
            client().final(message.encode())
    for final in (b"v=AAAA", b"e=other-error", b"", EXCHANGE[3] + b"x"):
        with case(final):
            here = client()
            here.final(EXCHANGE[1])
            with pytest.raises(ScramFailed):
                here.check(final)


def test_a_server_stores_nothing_that_logs_in() -> None:
    client_key = hmac.digest(salted_password(PASSWORD, SALT, ITERATIONS), b"Client Key", "sha256")
    assert hashlib.sha256(client_key).digest() == KNOWN.stored_key
    assert client_key not in KNOWN
