"""A warning that any client can cause. It is logged rarely, so that no client can fill the disk. A pure module."""

import logging

_INTERVAL_MS = 10_000


class RareWarning:
    """Logs at most one line in ten seconds, and says how many lines it has left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next_ms = 0
        self._left_out = 0

    def say(self, now_ms: int, line: str) -> None:
        """Log a line, unless the last one is too recent."""
        if self._next_ms - _INTERVAL_MS <= now_ms < self._next_ms:
            self._left_out += 1
            return
        more = f" ({self._left_out} such warnings were left out)" if self._left_out else ""
        self._log.warning("%s%s", line, more)
        self._next_ms, self._left_out = now_ms + _INTERVAL_MS, 0
