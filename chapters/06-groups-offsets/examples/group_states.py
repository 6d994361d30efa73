"""Draw the states of a classic group as a mermaid diagram, from the table of transitions.

    python chapters/06-groups-offsets/examples/group_states.py

A test compares the output with the diagram in the lesson.
"""

from minibroker.groups.classic_transitions import NEXT, Cause, GroupState


def drawing() -> str:
    """The diagram. Every state can end, so the arrows to `Dead` would hide the others: they are left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY.value}"]
    for (state, cause), following in NEXT.items():
        if cause is not Cause.ENDED:
            lines.append(f"    {state.value} --> {following.value}: {cause.value}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(drawing())
