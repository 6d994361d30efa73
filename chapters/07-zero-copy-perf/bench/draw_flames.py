"""Draws where the CPU time of a small Produce goes, before this chapter and after it: `draw_flames.py FOLDER`.

The node of chapter 06 has the connection of chapter 03; the node of this chapter has the fast one. Both get the same
requests. A box is a function, and what it calls is below it. Its width is its CPU time in microseconds per request, on
one scale for both, so the narrower picture is the faster node.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.bench_requests import TOPIC, check, framed, produce
from bench.exchange import Exchange

from minibroker.bench import Context, children, scaled
from minibroker.bench.context import open_context, quick_note
from minibroker.bench.pictures import MARGIN, note, save
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.simulation.svg import element, text, text_width

PROGRAMS = {"before: chapter 06": "minibroker.coordinators", "after: chapter 07": "minibroker.transfer"}
WIDTH = 1000
ROW = 18
SMALL_PX = 11
LEAST_PX = 3
# The event loop's own frames, which every stack has, would only add rows.
LOOP, CALLBACK = "._run_once", "._run"


@dataclass
class Flame:
    """A function in a stack: the samples in it and below it, and the functions that it calls."""

    name: str
    count: int = 0
    calls: dict[str, "Flame"] = field(default_factory=dict)

    def add(self, stack: list[str], count: int) -> None:
        """Count a stack."""
        self.count += count
        if stack:
            self.calls.setdefault(stack[0], Flame(stack[0])).add(stack[1:], count)

    def depth(self, least: float) -> int:
        """The number of rows that are wide enough to be drawn."""
        return 1 + max((it.depth(least) for it in self.calls.values() if it.count >= least), default=0)


def sampled(context: Context, program: str) -> tuple[Flame, float]:
    """Run the requests against a program; return its stacks, and its CPU time per request in microseconds."""
    file, count = context.directory / f"{program}.stacks", scaled(full=40_000, quick=200)
    script = [sys.executable, str(Path(__file__).with_name("sampled.py")), str(file), program]
    settings = ("--set", "offsets.topic.replication.factor=1")
    data = context.directory / program
    node = children.start(context, lambda listen: [*script, "1", str(data), listen, *settings])
    with Client(node.address) as client:
        create_topics(client, [NewTopic(TOPIC, 1)])
    exchange = Exchange(context, node.host, node.port)
    request = framed(produce())
    answer = exchange.ask(request)
    check(produce(), answer)
    begun_s = node.cpu_s()
    exchange.repeat(request, len(answer), count=count)
    cpu_us = (node.cpu_s() - begun_s) * 1e6 / count
    node.stop()
    return flame_of(file.read_text()), cpu_us


def flame_of(stacks: str) -> Flame:
    """Put stacks together, from the event loop's call on."""
    whole = Flame("event loop")
    for line in stacks.splitlines():
        names, _, count = line.rpartition(" ")
        stack = names.split(";")
        begin = next((number for number, it in enumerate(stack) if it.endswith(CALLBACK)), None)
        if begin is not None:
            whole.add(stack[begin + 1 :], int(count))
        elif LOOP in names:
            # Work outside a callback is the event loop itself. What is outside the loop is the start of the program.
            whole.add(["select"], int(count))
    return whole


def boxes(flame: Flame, *, x: float, y: float, px: float, depth: int = 0) -> list[str]:
    """Draw a function, and below it what it calls."""
    width = flame.count * px
    if width < LEAST_PX:
        return []
    parts = [
        element(
            "rect", x=x, y=y, width=width - 0.5, height=ROW - 2, rx=2, class_=f"fill-{depth % 2 * 3 + 1}", opacity=0.8
        )
    ]
    if text_width(flame.name, SMALL_PX) < width:
        parts.append(text(flame.name, x=x + 4, y=y + 12, class_="label", style=f"font-size:{SMALL_PX}px"))
    for it in sorted(flame.calls.values(), key=lambda each: each.name):
        parts += boxes(it, x=x, y=y + ROW, px=px, depth=depth + 1)
        x += it.count * px
    return parts


def draw(folder: Path) -> None:
    """Sample both programs, and draw them one above the other."""
    with open_context() as context:
        found = {title: sampled(context, program) for title, program in PROGRAMS.items()}
    widest_us = max(cpu_us for _flame, cpu_us in found.values())
    body, y = [note(quick_note(), y=52)], 76.0
    for title, (flame, cpu_us) in found.items():
        px = (WIDTH - 2 * MARGIN) * cpu_us / widest_us / max(flame.count, 1)
        body.append(note(f"{title}: {cpu_us:.0f} µs of CPU for a request", y=y, class_="label"))
        body += boxes(flame, x=MARGIN, y=y + 10, px=px)
        y += ROW * flame.depth(LEAST_PX / px) + 50
    save(folder, "flames", "Where the CPU time of a small Produce goes", "Two flame graphs on one scale.",
         size=(WIDTH, y), body=body)  # fmt: skip


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
