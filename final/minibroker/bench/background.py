"""Work that runs on a separate thread during an experiment, from the beginning of a `with` to its end."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """Work that a thread repeats until `end` is called."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """The work of the thread; it returns soon after `is_over` is set."""

    def close(self, *, is_well: bool) -> None:  # noqa: B027
        """Release everything after the thread has ended. `is_well` is false if the experiment has failed."""

    def end(self) -> None:
        """End the work, and wait for the thread."""
        self.is_over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self.close(is_well=kind is None)
