"""The memory budget of large requests: shares, queue, and requests that do not arrive. The time is an input."""

from cases import case

from minibroker.partitions.budget import PATIENCE_MS, Budget, Share

MB = 1_000_000
ONE, OTHER = "10.0.0.1", "10.0.0.2"


class Requests:
    """Requests of several addresses, and those that were closed or may read on after a wait."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = Budget(bytes_max)
        self.closed: list[Share] = []
        self.resumed: list[Share] = []

    def begin(self, address: str = ONE, length: int = 100 * MB) -> Share:
        share = self.budget.begin(address, length, lambda: self.closed.append(share))
        return share

    def take(self, share: Share, count: int = MB) -> bool:
        return self.budget.take(share, count, lambda: self.resumed.append(share))

    def close_laggards(self, now_ms: int) -> None:
        for share in self.budget.laggards(now_ms):
            share.close()
            self.budget.end(share)


def test_one_address_takes_half_of_the_budget_and_another_one_is_not_delayed() -> None:
    requests = Requests(10 * MB)
    first, second = requests.begin(), requests.begin()
    assert requests.take(first, 3 * MB)
    assert requests.take(second, 2 * MB)
    assert not requests.take(first)
    third = requests.begin(OTHER)
    assert requests.take(third, 5 * MB)
    assert requests.budget.bytes == 10 * MB
    requests.budget.end(second)
    assert requests.resumed == [first]


def test_if_every_request_waits_only_the_oldest_one_exceeds_the_limit() -> None:
    requests = Requests(4 * MB)
    shares = [requests.begin(address) for address in (ONE, ONE, OTHER)]
    for share in shares:
        assert requests.take(share)
    for share in shares:
        assert not requests.take(share, 3 * MB)
    assert requests.resumed == [shares[0]]
    # The oldest one gets more, again and again, until it is complete. So the others together stay within the limit.
    for _ in range(50):
        assert requests.take(shares[0])
    requests.budget.end(shares[0])
    assert requests.budget.bytes == 5 * MB
    assert requests.resumed == shares[:2]


def test_requests_that_do_not_arrive_are_closed_only_while_others_wait() -> None:
    requests = Requests(4 * MB)
    stalled = [requests.begin(), requests.begin(OTHER)]
    for share in stalled:
        assert requests.take(share, 2 * MB)
    for now_ms in range(0, 60_000, 500):
        requests.close_laggards(now_ms)
    assert requests.closed == []
    third = requests.begin("10.0.0.3", 2 * MB)
    assert not requests.take(third, 2 * MB)
    begin_ms = 60_000
    for now_ms in range(begin_ms, begin_ms + PATIENCE_MS, 500):
        requests.close_laggards(now_ms)
        assert requests.closed == [], now_ms
    requests.close_laggards(begin_ms + PATIENCE_MS)
    assert requests.closed == stalled
    assert requests.resumed == [third]


def test_a_request_that_trickles_in_is_closed_and_one_that_arrives_soon_is_not() -> None:
    for piece, is_closed in ((1, True), (400_000, False)):
        with case(f"{piece} bytes at a time"):
            requests = Requests(10 * MB)
            slow, waiting = requests.begin(ONE, 5 * MB), requests.begin(OTHER, 10 * MB)
            requests.take(slow, MB)
            while requests.take(waiting):
                pass
            # The oldest request gets its room, even beyond the limit, and is then waited for.
            for now_ms in range(0, PATIENCE_MS + 1, 500):
                requests.take(slow, piece)
                assert not slow.wanted
                requests.close_laggards(now_ms)
            assert requests.closed == ([slow] if is_closed else [])


def test_a_request_that_ends_leaves_nothing() -> None:
    requests = Requests(2 * MB)
    first, second = requests.begin(), requests.begin(OTHER)
    requests.take(first, 2 * MB)
    requests.take(second, 2 * MB)
    requests.budget.end(second)
    requests.budget.end(first)
    assert requests.budget.bytes == 0
    assert not requests.budget._addresses
    assert not requests.budget._queue
