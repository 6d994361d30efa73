"""Chance as an input: streams of random numbers, each from the seed and a name. A pure module.

The network, the faults and each producer have streams of their own. So the numbers that one of them draws do not change
the numbers of the others: a fault can be left out of a run, and the other faults stay the same.
"""

from random import Random


def stream(seed: int, name: str) -> Random:
    """The stream with this name. Its seed is a text, so it is the same under any PYTHONHASHSEED."""
    return Random(f"{seed} {name}")
