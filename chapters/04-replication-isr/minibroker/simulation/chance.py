"""Chance as an input: streams of random numbers, each from the seed and a name. A pure module.

The network has a stream, the faults have one, each producer has one. So what one of them draws does not change what the
others draw: a fault can be taken out of a run, and the rest of the faults stay what they were.
"""

from random import Random


def stream(seed: int, name: str) -> Random:
    """The numbers that a seed has for a name. A string seeds the same stream under any PYTHONHASHSEED."""
    return Random(f"{seed} {name}")
