"""The memory budget of large requests: shares, queue, and requests that do not arrive. The time is an input."""

import weakref

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
    # What the first request holds still counts for its address.
    requests.budget.end(third)
    assert not requests.take(requests.begin(), 2 * MB)


def test_a_request_does_not_overtake_a_larger_one_that_waits() -> None:
    requests = Requests(10 * MB)
    shares = [requests.begin(f"10.0.0.{number}") for number in range(4)]
    assert requests.take(shares[0], 5 * MB)
    assert requests.take(shares[1], 4 * MB)
    assert not requests.take(shares[2], 3 * MB)
    assert not requests.take(shares[3], MB)
    requests.budget.end(shares[1])
    assert requests.resumed == shares[2:]


def test_if_every_request_of_an_address_waits_only_its_oldest_one_exceeds_the_half() -> None:
    requests = Requests(10 * MB)
    first, second, other = requests.begin(), requests.begin(), requests.begin(OTHER)
    for share in (first, second, other):
        assert requests.take(share, 2 * MB)
    assert not requests.take(second, 3 * MB)
    assert requests.take(first, 3 * MB)
    assert requests.resumed == []


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


def test_two_seconds_are_counted_from_the_time_at_which_others_begin_to_wait() -> None:
    requests = Requests(4 * MB)
    for address in (ONE, OTHER):
        requests.take(requests.begin(address), 2 * MB)
    for now_ms in (0, 60_000):
        waiting = requests.begin("10.0.0.3")
        assert not requests.take(waiting)
        requests.close_laggards(now_ms)
        requests.close_laggards(now_ms + PATIENCE_MS - 1)
        requests.budget.end(waiting)
        requests.close_laggards(now_ms + PATIENCE_MS)
    assert requests.closed == []


def test_requests_that_stand_still_are_closed_first_and_otherwise_the_slowest_one() -> None:
    for is_still in (True, False):
        with case(f"the oldest request stands still: {is_still}"):
            requests = Requests(100 * MB)
            oldest, waiting = requests.begin(ONE, 51 * MB), requests.begin(ONE)
            slow, slowest = requests.begin(OTHER), requests.begin("10.0.0.3")
            assert requests.take(oldest, 50 * MB)
            assert not requests.take(waiting)
            requests.close_laggards(0)
            assert requests.take(slow, 2000)
            assert requests.take(slowest, 1000)
            if not is_still:
                assert requests.take(oldest)
            requests.close_laggards(PATIENCE_MS)
            assert requests.closed == [oldest if is_still else slowest]


def test_a_request_that_trickles_in_is_closed_and_one_that_arrives_soon_is_not() -> None:
    for piece, is_closed in ((1, True), (159_000, True), (160_000, False), (400_000, False)):
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


def test_a_request_that_ended_holds_no_memory_even_if_its_share_is_kept() -> None:
    budget, content = Budget(MB), {1}
    freed = weakref.ref(content)
    share = budget.begin(ONE, MB, content.clear)
    budget.take(share, 1, content.clear)
    budget.end(share)
    del content
    assert freed() is None
