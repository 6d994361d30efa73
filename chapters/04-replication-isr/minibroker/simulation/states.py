"""What a run must have met to be worth anything. A pure module.

Ten thousand clean runs prove nothing about truncation if no log was ever truncated. So a world declares the states that
its runs should reach, counts how often they did, and many runs together fail if one of them was never reached.
"""

from collections.abc import Iterable


class States:
    """How often each declared state was reached."""

    def __init__(self, declared: Iterable[str]) -> None:
        self.counts: dict[str, int] = dict.fromkeys(declared, 0)

    def reach(self, name: str) -> None:
        """One of them is reached."""
        assert name in self.counts, f"the state {name!r} is not declared"
        self.counts[name] += 1
