"""How long a rebalance waits for the members of a classic group. A pure module."""

NEVER = 1 << 62
"""A deadline that does not come."""


class JoinTimer:
    """The time in which the members have to join.

    When the first member joins an empty group, more members are probably about to start, and each would cause a
    rebalance. So the first rebalance waits a moment, even if all known members have joined. Each time, it waits as long
    again if a member has come in the meantime, but not longer than the rebalance timeout.
    """

    def __init__(self) -> None:
        self.deadline_ms = NEVER
        self._extends_until_ms: int | None = None
        self._delay_ms = 0
        self._has_newcomer = False

    @property
    def is_initial(self) -> bool:
        """Whether it is the first rebalance of a group that was empty."""
        return self._extends_until_ms is not None

    def start(self, now_ms: int, timeout_ms: int, initial_delay_ms: int | None = None) -> None:
        """Wait for the members until the rebalance timeout is over, or for the initial delay."""
        end_ms = now_ms + timeout_ms
        self.deadline_ms = end_ms if initial_delay_ms is None else now_ms + initial_delay_ms
        self._extends_until_ms = None if initial_delay_ms is None else end_ms
        self._delay_ms = initial_delay_ms or 0
        self._has_newcomer = False

    def on_newcomer(self) -> None:
        """Another member has come."""
        self._has_newcomer = True

    def is_over(self, now_ms: int) -> bool:
        """Whether the time is over. If a member has come during the initial delay, it is extended."""
        if now_ms < self.deadline_ms:
            return False
        if self._has_newcomer and self._extends_until_ms is not None and now_ms < self._extends_until_ms:
            self.deadline_ms = min(now_ms + self._delay_ms, self._extends_until_ms)
            self._has_newcomer = False
            return False
        return True

    def stop(self) -> None:
        """The members have joined."""
        self.deadline_ms = NEVER
        self._extends_until_ms = None
