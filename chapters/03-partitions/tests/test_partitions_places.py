"""Places for connections: clients beyond the limit, addresses with many connections, and nodes that log in."""

from dataclasses import dataclass, field

from minibroker.partitions.places import LOGINS_MAX, TRIAL_MS, TRIALS_MAX, Entry, Places, Verdict
from minibroker.partitions.registry import Session

ONE, OTHER, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"


@dataclass(eq=False)
class Guest:
    address: str
    is_idle: bool = True
    since_ms: int = 0
    session: Session = field(default_factory=lambda: Session("a"))


class Hall:
    """A server with places for a few clients."""

    def __init__(self, total_max: int = 4, per_address_max: int = 1000, *, has_login: bool = True) -> None:
        self.places: Places[Guest] = Places(lambda: has_login)
        self.total_max = total_max
        self.per_address_max = per_address_max
        self.now_ms = 0

    def enter(self, guest: Guest) -> Entry[Guest]:
        entry = self.places.enter(
            guest, total_max=self.total_max, per_address_max=self.per_address_max, now_ms=self.now_ms
        )
        if entry.leaving is not None:
            self.places.leave(entry.leaving)
        return entry

    def fill(self, *addresses: str) -> list[Guest]:
        guests = [Guest(address) for address in addresses]
        assert all(self.enter(it) == Entry(Verdict.SERVED) for it in guests)
        return guests


def test_a_connection_beyond_the_limit_is_closed_if_there_is_no_login() -> None:
    hall = Hall(has_login=False)
    guests = hall.fill(ONE, ONE, ONE, ONE)
    refused = hall.enter(Guest(ONE))
    assert refused == Entry(Verdict.CLOSED, "there are 4 connections (max.connections)")
    hall.places.leave(guests[0])
    hall.fill(ONE)


def test_an_address_with_fewer_connections_gets_the_place_that_another_one_used_longest_ago() -> None:
    hall = Hall()
    guests = hall.fill(ONE, ONE, ONE, OTHER)
    guests[0].is_idle = False
    guests[1].since_ms, guests[2].since_ms = 20, 10
    entry = hall.enter(Guest(THIRD))
    assert (entry.verdict, entry.leaving) == (Verdict.SERVED, guests[2])
    # Two of the first address, and one of each other: nobody has much more than the others.
    assert hall.enter(Guest(THIRD)).verdict is Verdict.ON_TRIAL


def test_neither_a_node_nor_a_trial_leaves_for_another_address() -> None:
    hall = Hall()
    node, *clients = hall.fill(ONE, ONE, ONE, ONE)
    node.session.node_id = 1
    clients += hall.fill(ONE)
    trial = Guest(ONE)
    assert hall.enter(trial).verdict is Verdict.ON_TRIAL
    for number, it in enumerate(clients):
        it.since_ms = 10 + number
    assert hall.enter(Guest(OTHER)) == (Verdict.SERVED, "there are 4 connections (max.connections)", clients[0])


def test_one_address_has_a_limit_of_its_own() -> None:
    hall = Hall(per_address_max=2)
    first, _second = hall.fill(ONE, ONE)
    assert hall.enter(Guest(ONE)).reason == "there are 2 connections from 10.0.0.1 (max.connections.per.ip)"
    hall.fill(OTHER)
    # The connection on trial does not count.
    hall.places.leave(first)
    hall.fill(ONE)


def test_nodes_take_no_place_of_a_client_and_clients_none_of_a_node() -> None:
    hall = Hall()
    hall.fill(ONE, ONE, ONE, ONE)
    for node_id in range(50):
        node = Guest(ONE)
        entry = hall.enter(node)
        assert (entry.verdict, entry.leaving) == (Verdict.ON_TRIAL, None)
        assert hall.places.is_on_trial(node)
        node.session.node_id = node_id
        assert node_id % 2 or not hall.places.is_on_trial(node)
    hall.now_ms += 10 * TRIAL_MS
    assert hall.places.overdue(hall.now_ms) == []


def test_a_trial_ends_after_its_time() -> None:
    hall = Hall()
    hall.fill(ONE, ONE, ONE, ONE)
    hall.now_ms = 1000
    client, gone = Guest(ONE), Guest(ONE)
    hall.enter(client)
    hall.enter(gone)
    hall.places.leave(gone)
    assert hall.places.overdue(1000 + TRIAL_MS - 1) == []
    assert hall.places.overdue(1000 + TRIAL_MS) == [client]


def test_a_connection_beyond_the_limit_is_on_trial_also_if_it_must_log_in_and_if_nobody_has_a_place() -> None:
    for total_max in (0, 2):
        hall = Hall(total_max)
        hall.fill(*[ONE] * total_max)
        for needs_login in (True, False):
            guest = Guest(ONE, session=Session("a", needs_login=needs_login))
            assert hall.enter(guest).verdict is Verdict.ON_TRIAL, (total_max, needs_login)


def test_trials_of_one_address_do_not_keep_another_one_from_its_login() -> None:
    hall = Hall()
    hall.fill(ONE, ONE, ONE, ONE)
    node = Guest(OTHER)
    hall.per_address_max = 0  # every further connection is on trial
    trials = [Guest(ONE) for _ in range(TRIALS_MAX)]
    for it in trials[:-1]:
        assert hall.enter(it).leaving is None
    assert hall.enter(node).leaving is None
    for n in range(100):
        entry = hall.enter(Guest(ONE))
        assert entry.verdict is Verdict.ON_TRIAL, n
        assert entry.leaving is not node, n
    assert hall.places.is_on_trial(node)


def test_few_connections_of_a_listener_that_demands_a_login_are_without_one() -> None:
    def stranger(address: str) -> Guest:
        return Guest(address, session=Session("a", needs_login=True))

    hall = Hall(total_max=10 * LOGINS_MAX)
    node, strangers = stranger(OTHER), [stranger(ONE) for _ in range(LOGINS_MAX + 50)]
    hall.enter(node)
    for number, it in enumerate(strangers):
        entry = hall.enter(it)
        assert (entry.verdict, entry.leaving) == (
            Verdict.SERVED,
            strangers[number - LOGINS_MAX + 1] if number > LOGINS_MAX - 2 else None,
        )
    # A connection that has logged in makes room, and those of other listeners do not count.
    node.session.needs_login = False
    assert hall.enter(stranger(THIRD)).leaving is None
    assert hall.enter(stranger(THIRD)).reason == f"there are {LOGINS_MAX} connections without a login"
    hall.fill(ONE)
