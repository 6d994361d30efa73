"""Draw the table of roles: a column for each role, and an arrow with its cause for each transition.

python chapters/05-raft-controller/examples/roles.py > roles.svg
"""

from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.simulation.svg import document, element, line, text, text_width

COLUMN = 222
LEFT = 70
TOP = 66
ROW = 31
HEAD = 8
LOOP = 34


def x_of(role: Role) -> int:
    """The x position of a role's line."""
    return LEFT + COLUMN * list(Role).index(role)


def column(role: Role, bottom: float) -> list[str]:
    """The name and the line of a role."""
    x = x_of(role)
    return [
        text(role.value, x=x, y=TOP - 22, class_="group", text_anchor="middle"),
        line(x, TOP - 10, x, bottom, "axis"),
    ]


def arrow(role: Role, cause: Cause, y: float) -> list[str]:
    """A transition from a role to another, or to itself."""
    x1, x2, colour = x_of(role), x_of(NEXT[role, cause]), list(Role).index(role)
    if x1 == x2:
        path = f"M{x1} {y - 8} h{LOOP} v8 h-{LOOP - HEAD}"
        drawn = element("path", d=path, class_=f"curve stroke-{colour}")
        return [drawn, head(x1, y, 1, colour), text(cause.value, x=x1 + LOOP + 6, y=y, class_="value")]
    way = 1 if x2 < x1 else -1
    width = text_width(cause.value)
    label = text(
        cause.value,
        x=min(max((x1 + x2) / 2, LEFT + width / 2), LEFT + 5 * COLUMN - width / 2),
        y=y - 6,
        class_="value",
        text_anchor="middle",
    )
    dot = element("circle", cx=x1, cy=y, r=4, class_=f"fill-{colour}")
    return [line(x1, y, x2 + way * HEAD, y, f"curve stroke-{colour}"), dot, head(x2, y, way, colour), label]


def head(x: float, y: float, way: int, colour: int) -> str:
    """The point of an arrow at x; it comes from the right if `way` is 1."""
    points = f"{x},{y} {x + way * HEAD},{y - 4} {x + way * HEAD},{y + 4}"
    return element("polygon", points=points, class_=f"fill-{colour}")


def drawing() -> str:
    """The whole table."""
    bottom = TOP + ROW * len(NEXT) + 20
    body = [text("The roles of a node of the quorum, and why they change", x=16, y=24, class_="title")]
    for role in Role:
        body += column(role, bottom)
    for row, (role, cause) in enumerate(NEXT):
        body += arrow(role, cause, TOP + ROW * (row + 1) - 8)
    width = 2 * LEFT + COLUMN * (len(Role) - 1)
    description = f"{len(Role)} roles, and the {len(NEXT)} transitions between them."
    return document("Roles of a node of the quorum", description, width, bottom + 16, body)


if __name__ == "__main__":
    print(drawing(), end="")
