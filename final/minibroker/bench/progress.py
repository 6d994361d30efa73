"""The line that shows the progress of a run, on stderr, so that stdout has only the tables."""

import shutil
import sys
from typing import TextIO


class ProgressLine:
    """One line rewritten in place on a terminal; elsewhere one plain line for each round."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._width = 0
        self._round_shown = -1

    def __call__(self, round_number: int, repeats: int, case_name: str) -> None:
        """Show the round that is running, and on a terminal the case too."""
        step = f"round {round_number} of {repeats}" if round_number else "warming up"
        if self._is_terminal:
            self._rewrite(f"{self._label}: {step}: {case_name}")
        elif round_number != self._round_shown:
            self._round_shown = round_number
            self._stream.write(f"{self._label}: {step}\n")
            self._stream.flush()

    def close(self) -> None:
        """Clear the line, so that the next output starts on an empty one."""
        if self._is_terminal and self._width:
            self._rewrite("")
            self._stream.write("\r")
            self._stream.flush()

    def _rewrite(self, text: str) -> None:
        # A line that wraps cannot be rewritten, so it is cut. Spaces overwrite the rest of a longer line.
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)
