"""Directed scenarios: a text says what happens, and what was seen is written below each step.

A step is a line that begins with `> `. Its first word names a method of the chapter's stage, and the other words are
its arguments: `> cut-power 2` calls `on_cut_power("2")`, which returns the lines to be written below. Lines that begin
with # are for the reader, and stay.
"""

from collections.abc import Callable


class Stage:
    """Plays scenarios; a chapter's stage has a method for each of its steps."""

    def play(self, text: str) -> str:
        """Return the same text with the results of this run below each step."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                lines += [line, *(f"  {it}" for it in self._step(*line[2:].split()))]
            elif line.startswith("#") or not line:
                lines.append(line)
        return "\n".join(lines) + "\n"

    def _step(self, name: str, *arguments: str) -> list[str]:
        step: Callable[..., list[str]] = getattr(self, "on_" + name.replace("-", "_"))
        lines = step(*arguments)
        self.after_step()
        return lines

    def after_step(self) -> None:
        """Do what a node does after each event, such as answering what can be answered now."""
