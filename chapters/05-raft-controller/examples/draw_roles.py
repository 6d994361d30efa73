"""Draw the roles of a node of the quorum as a mermaid diagram, from the table of transitions.

    python chapters/05-raft-controller/examples/draw_roles.py

A test compares the output with the diagram in the lesson. Causes that lead from one role to the same other role share
an arrow. In every role a newer epoch leads to `unattached`; these arrows would hide the others, and are left out.
"""

from minibroker.raft.roles import NEXT, Cause, Role


def drawing() -> str:
    """The diagram. A node with an empty disk begins as unattached."""
    causes: dict[tuple[Role, Role], list[str]] = {}
    for (role, cause), following in NEXT.items():
        if cause is not Cause.NEWER_EPOCH:
            causes.setdefault((role, following), []).append(cause.value)
    arrows = [f"    {role.value} --> {to.value}: {', or '.join(why)}" for (role, to), why in causes.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> unattached", *arrows])


if __name__ == "__main__":
    print(drawing())
