"""The fewest faults with which a run still fails. A pure module.

A failing seed may have twenty faults, although four of them are enough to make it fail. The algorithm is Zeller and
Hildebrandt's ddmin: leave out half of the faults, then a quarter, then an eighth, as long as the run still fails, until
every single fault is needed.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(faults: Sequence[T], is_failing: Callable[[Sequence[T]], bool], *, runs_max: int = 200) -> list[T]:
    """Leave out faults while the run still fails. `is_failing` runs the seed, `runs_max` times at most."""
    kept, pieces, runs = list(faults), 2, 0
    while len(kept) >= 1:
        # Try the run without each piece in turn.
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            # A run is slow, so the search may end early.
            if runs == runs_max:
                return kept
            runs += 1
            fewer = kept[:start] + kept[start + size :]
            if is_failing(fewer):
                kept, pieces = fewer, max(pieces - 1, 2)
                break
        else:
            # Every piece is needed. Cut finer, unless each is a single fault already.
            if size == 1:
                break
            pieces = min(pieces * 2, len(kept))
    return kept
