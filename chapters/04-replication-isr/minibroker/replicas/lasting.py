"""Logs a failure that lasts.

While another node stops, restarts or is elected, requests fail for a moment. That is normal, and not worth a warning.
A failure that lasts longer is logged once, so that a node that is down for hours does not fill the log.
"""

from collections.abc import Callable
from logging import Logger

from minibroker.log.clock import monotonic_ms

LASTING_MS = 5000
"""Longer than the session timeout of a broker and the elections after it."""


class LastingFailure:
    """The failure of an operation that a node repeats until it succeeds."""

    def __init__(self, log: Logger, *, clock: Callable[[], int] = monotonic_ms) -> None:
        self._log = log
        self._clock = clock
        self._since_ms: int | None = None
        self._is_logged = False

    def note(self, message: str, *parts: object) -> None:
        """An attempt has failed. Log one warning if attempts have failed for `LASTING_MS`."""
        now_ms = self._clock()
        if self._since_ms is None:
            self._since_ms = now_ms
        if not self._is_logged and now_ms - self._since_ms >= LASTING_MS:
            self._is_logged = True
            self._log.warning(message, *parts)

    def end(self) -> None:
        """An attempt has succeeded."""
        self._since_ms, self._is_logged = None, False
