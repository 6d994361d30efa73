"""A node's process: it is killed, paused, and started again. A pure module.

Everything that a node does goes through `run`, so a dead process does nothing, and a paused one acts later. A timer
set with `after` is cancelled when the process dies.
"""

from collections.abc import Callable

from minibroker.simulation.scheduler import Action, Scheduler, Timer
from minibroker.simulation.trace import KILLED, NOTE, PAUSED, RESUMED, STARTED, Trace


class Died(BaseException):
    """The process dies in the middle of an operation. No code that runs in it may catch this."""


class Process:
    """The process of one node, which may be started many times. `on_died` is called after a `Died`."""

    def __init__(self, scheduler: Scheduler, trace: Trace, name: str, on_died: Action | None = None) -> None:
        self.after_run: Action | None = None
        """Called after each action of the process, to send messages and to check the new state."""
        self.is_expected: Callable[[Exception], bool] | None = None
        """Tells whether a fault should cause this error. Such an error ends the action, but not the whole run."""
        self.name = name
        self.is_alive = False
        self.is_paused = False
        self.lives = 0
        self.clock_error_ms = 0
        self._scheduler = scheduler
        self._trace = trace
        self._on_died = on_died
        self._backlog: list[tuple[int, Action]] = []

    @property
    def now_ms(self) -> int:
        """The time by the node's own clock, which may be wrong."""
        return self._scheduler.now_ms + self.clock_error_ms

    # Starts and ends --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        assert not self.is_alive, f"{self.name} is alive"
        self.is_alive = True
        self.lives += 1
        self._trace.happened(self.name, STARTED)

    def kill(self, how: str = "") -> None:
        """End the process: only its disk remains."""
        self.is_alive = self.is_paused = False
        self._backlog.clear()
        self._trace.happened(self.name, KILLED, how)

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does: time passes, and the process does not notice."""
        if self.is_alive and not self.is_paused:
            self.is_paused = True
            self._trace.happened(self.name, PAUSED)

    def resume(self) -> None:
        """Resume the process: the actions that came in the meantime run now, in order."""
        if not self.is_paused:
            return
        self.is_paused = False
        self._trace.happened(self.name, RESUMED)
        backlog, self._backlog = self._backlog, []
        for life, action in backlog:
            self._scheduler.after(0, lambda life=life, action=action: self._run_in(life, action))  # type: ignore[misc]

    # Actions ----------------------------------------------------------------------------------------------------------

    def run(self, action: Action) -> None:
        """Run an action now; later if the process is paused; never if it is dead."""
        if self.is_paused:
            self._backlog.append((self.lives, action))
        elif self.is_alive:
            try:
                action()
                if self.after_run is not None:
                    self.after_run()
            except Died:
                self._die()
            except Exception as error:
                if self.is_expected is None or not self.is_expected(error):
                    raise
                self._trace.happened(self.name, NOTE, f"{type(error).__name__}: {error}")

    def after(self, delay_ms: int, action: Action) -> Timer:
        """Run an action later, unless the process dies before that."""
        life = self.lives

        # This is `_run_in` without another call: most events of a world are such timers.
        def fire() -> None:
            if self.lives == life:
                self.run(action)

        return self._scheduler.after(delay_ms, fire)

    def in_this_life(self, action: Callable[..., None]) -> Callable[..., None]:
        """Wrap an action, such as an answer under way, so that it does nothing after the process has died."""
        life = self.lives

        def guarded(*arguments: object) -> None:
            if self.lives == life:
                action(*arguments)

        return guarded

    def _run_in(self, life: int, action: Action) -> None:
        if self.lives == life:
            self.run(action)

    def _die(self) -> None:
        if self._on_died is not None:
            self._on_died()
        if self.is_alive:
            self.kill("in mid-write")
