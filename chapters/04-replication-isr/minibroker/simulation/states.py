"""The states that the runs together must reach. A pure module.

Ten thousand clean runs prove nothing about truncation if no log was ever truncated. So a world declares the states that
its runs should reach and counts them. Many runs together fail if one of these states was never reached.
"""

from collections.abc import Iterable


class States:
    """How often each declared state was reached."""

    def __init__(self, declared: Iterable[str]) -> None:
        self.counts: dict[str, int] = dict.fromkeys(declared, 0)

    def reach(self, name: str) -> None:
        """Add one to the count of a declared state."""
        assert name in self.counts, f"the state {name!r} is not declared"
        self.counts[name] += 1
