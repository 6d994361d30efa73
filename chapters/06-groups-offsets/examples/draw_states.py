"""Draw the states of a classic group, or of a transaction, as a mermaid diagram, from the table of transitions.

    python chapters/06-groups-offsets/examples/draw_states.py group
    python chapters/06-groups-offsets/examples/draw_states.py transaction

A test compares the output with the diagram in the lesson.
"""

import sys
from collections.abc import Iterable

from minibroker.groups import classic_transitions
from minibroker.transactions import transitions

Arrow = tuple[str, str, str]


def group_arrows() -> Iterable[Arrow]:
    """The arrows of a group. Every state can end, so the arrows to `Dead` would hide the others: they are left out."""
    for (state, cause), following in classic_transitions.NEXT.items():
        if cause is not classic_transitions.Cause.ENDED:
            yield state.value, following.value, cause.value


def transaction_arrows() -> Iterable[Arrow]:
    """The arrows of a transaction, without those of an abort of nothing, which lesson 10 explains."""
    for (state, cause), following in transitions.NEXT.items():
        if cause is not transitions.Cause.ABORT_NOTHING:
            yield state.label, following.label, cause.value


ARROWS = {"group": group_arrows, "transaction": transaction_arrows}


def drawing(what: str) -> str:
    """The diagram. Both tables begin in the state Empty."""
    lines = ["stateDiagram-v2", "    [*] --> Empty"]
    return "\n".join([*lines, *(f"    {state} --> {following}: {cause}" for state, following, cause in ARROWS[what]())])


if __name__ == "__main__":
    print(drawing(sys.argv[1]))
