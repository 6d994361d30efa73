"""An asyncio event loop on the simulator's clock, so that a world runs the coordinators' own tasks and timers.

    node's process ── every action runs with ──▶ SimulatedLoop ── call_soon, call_later ──▶ the simulator's timers

A loop lives as long as its process: after a kill nothing of it runs any more. It has what coordinators use, and no
more: callbacks, timers, tasks and futures.
"""

import asyncio
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Action, Scheduler, Timer
from minibroker.simulation.trace import Trace


class _Handle:
    """A callback that will run, unless it is cancelled."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context | None) -> None:
        self._callback = callback
        self._arguments = arguments
        self._context = context or copy_context()
        self.timer: Timer | None = None

    def run(self) -> None:
        # An error ends the run of the world, so nothing catches it here.
        self._context.run(self._callback, *self._arguments)

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class SimulatedLoop:
    """The event loop of one life of a process."""

    def __init__(self, process: Process, scheduler: Scheduler) -> None:
        self._process = process
        self._scheduler = scheduler
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self._scheduler.now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> _Handle:
        return self.call_later(0, callback, *arguments, context=context)

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, arguments, context)
        # A timer never fires early.
        handle.timer = self._process.after(-int(-delay_s * 1000 // 1), handle.run)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=self)  # type: ignore[arg-type]
        self._tasks = [it for it in self._tasks if not it.done()] + [task]
        return task

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks of a killed process are dropped without a word."""

    def drop_tasks(self) -> None:
        """The process is dead: its tasks never go on."""
        for task in self._tasks:
            work: Any = task.get_coro()
            if not task.done():
                work.close()
        self._tasks = []


class LoopProcess(Process):
    """A process whose actions run inside its event loop."""

    def __init__(self, scheduler: Scheduler, trace: Trace, name: str, on_died: Action) -> None:
        super().__init__(scheduler, trace, name, on_died)
        self._loop_scheduler = scheduler
        self.loop = SimulatedLoop(self, scheduler)

    def start(self) -> None:
        super().start()
        self.loop = SimulatedLoop(self, self._loop_scheduler)

    def kill(self, how: str = "") -> None:
        super().kill(how)
        self.loop.drop_tasks()

    def run(self, action: Action) -> None:
        before = _get_running_loop()
        _set_running_loop(self.loop)  # type: ignore[arg-type]
        try:
            super().run(action)
        finally:
            _set_running_loop(before)


class SlowTurn:
    """Stands for the lock of all coordinators that load: every slice of the load takes its time."""

    def __init__(self, delay_ms: Callable[[], int]) -> None:
        self._delay_ms = delay_ms

    async def __aenter__(self) -> None:
        await asyncio.sleep(self._delay_ms() / 1000)

    async def __aexit__(self, *_error: object) -> None:
        pass
