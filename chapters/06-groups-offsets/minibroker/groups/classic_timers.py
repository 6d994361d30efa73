"""How long a rebalance waits for the members of a classic group. A pure module."""

NEVER = 1 << 62
"""The deadline of a time limit that is not running: a time that no clock reaches."""


class JoinTimer:
    """The time limit within which all members must join.

    When the first member joins an empty group, more members are probably about to start, and each would cause a
    rebalance. So the first rebalance waits for the initial delay, even if all known members have joined. The delay is
    repeated as long as a new member has joined during it, up to the rebalance timeout.
    """

    def __init__(self) -> None:
        self.deadline_ms = NEVER
        self._extends_until_ms: int | None = None
        self._delay_ms = 0
        self._has_newcomer = False

    @property
    def is_initial(self) -> bool:
        """Whether the timer runs for the first rebalance of a group that was empty."""
        return self._extends_until_ms is not None

    def start(self, now_ms: int, timeout_ms: int, initial_delay_ms: int | None = None) -> None:
        """Start the time limit: the initial delay if there is one, otherwise the rebalance timeout."""
        end_ms = now_ms + timeout_ms
        self.deadline_ms = end_ms if initial_delay_ms is None else now_ms + initial_delay_ms
        self._extends_until_ms = None if initial_delay_ms is None else end_ms
        self._delay_ms = initial_delay_ms or 0
        self._has_newcomer = False

    def on_newcomer(self) -> None:
        """Note that a new member has joined."""
        self._has_newcomer = True

    def is_over(self, now_ms: int) -> bool:
        """Whether the time limit has ended. An initial delay in which a new member joined is extended instead."""
        if now_ms < self.deadline_ms:
            return False
        if self._has_newcomer and self._extends_until_ms is not None and now_ms < self._extends_until_ms:
            self.deadline_ms = min(now_ms + self._delay_ms, self._extends_until_ms)
            self._has_newcomer = False
            return False
        return True

    def stop(self) -> None:
        """Stop the timer: the members have joined, or there are none."""
        self.deadline_ms = NEVER
        self._extends_until_ms = None
