"""Starts the Python programs of the tests without their imports: each is a fork of a process that has done them.

The suite starts `python -m minibroker.cli`, `python -m pytest` and their like more than a thousand times, and each
start spends a third of a second on imports. `install` changes what `subprocess.Popen` does with such a command. A
template process imports the modules once. For each command it forks a child, which sets up its standard streams,
folder, environment and arguments, and then runs the module as `__main__`. The child is a process with an id of its
own, and a child of the process that called Popen, so waiting, signals and exit codes are the usual ones.

Every other command starts as always. So does a command whose environment has other variables of Python, because its
imports could find other modules. The commands of the course's pages are typed into a shell, and `minibroker up` starts
its nodes itself: those are whole starts, so the suite has both kinds. `MINIBROKER_NO_PREFORK=1` turns the forks off.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

OFF = "MINIBROKER_NO_PREFORK"
# Packages that a template imports, by the beginning of the module that its children run. A child of `pytest` imports
# the packages under test itself: they may be a learner's.
PACKAGES = {
    "minibroker.": ("minibroker.cli.*", "minibroker.clients.*", "minibroker.broker.*", "minibroker.replicas.*"),
    "pytest": ("_pytest.*", "pytest", "hypothesis.strategies", "hypothesis.stateful", "click", "crc32c", "kafka"),
}
# Variables of Python that a child obeys itself. Where the template has imported packages under test, the folders that
# they come from must be the same.
OBEYED = {"minibroker.": ("PYTHONUNBUFFERED",), "pytest": ("PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONSAFEPATH")}
_MESSAGE_BYTES_MAX = 1 << 17
_READY = b"ready"
_PR_SET_CHILD_SUBREAPER = 36


class Request(NamedTuple):
    """What a child runs. Its standard streams are sent beside it."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    is_session: bool
    group: int


# In the process that runs the tests


def install() -> Callable[[], None]:
    """From now on `subprocess.Popen` forks the commands that it can, until the function that is returned is called."""
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    names = list(inspect.signature(start).parameters)[1:]
    templates = {name: Template(name, os.environ) for name in PACKAGES} if sys.platform == "linux" else {}

    def start_or_fork(process: "subprocess.Popen[Any]", *values: Any) -> None:
        options: dict[str, Any] = dict(zip(names, values, strict=True))
        request = _request(options)
        template = templates.get(_template_name(request)) if request else None
        if request is None or template is None or not template.serves(request):
            start(process, *values)
            return
        pipes = [options[f"{pipe}{end}"] for pipe in ("p2c", "c2p", "err") for end in ("read", "write")]
        streams = [given if given != -1 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        process.pid = template.fork(request, streams)
        process._child_created = True  # type: ignore[attr-defined]
        process._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def uninstall() -> None:
        subprocess.Popen._execute_child = start  # type: ignore[attr-defined]
        for template in templates.values():
            template.close()

    functools.update_wrapper(start_or_fork, start)
    subprocess.Popen._execute_child = start_or_fork  # type: ignore[attr-defined]
    return uninstall


def _request(options: Mapping[str, Any]) -> Request | None:
    """The request for a command `python -m MODULE …` without unusual options."""
    command, folder = options["args"], options["cwd"] or "."
    usual = all(options[name] in (None, (), False) for name in ("executable", "preexec_fn", "pass_fds", "shell", "uid"))
    is_module = isinstance(command, list) and command[:2] == [sys.executable, "-m"] and len(command) > 2
    if not usual or not is_module or not os.path.isdir(folder) or os.environ.get(OFF):
        return None
    _, _, module, *arguments = map(os.fspath, command)
    environment = dict(os.environ if options["env"] is None else options["env"])
    group = -1 if options["process_group"] is None else options["process_group"]
    return Request(module, arguments, os.path.abspath(folder), environment, options["start_new_session"], group)


def _template_name(request: Request) -> str:
    # Only packages: their `__main__` is imported by no other module, so it is not in the template yet.
    first, dot, rest = request.module.partition(".")
    return "" if "." in rest else first + dot


class Template:
    """A template process, which is started at its first use."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._environment = {key: value for key, value in environment.items() if key not in OBEYED[name]}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def serves(self, request: Request) -> bool:
        """Whether the template could import its packages, and a whole start would import the same ones."""
        with self._lock:
            if self._process is None:
                self._start()
        return self._is_ready and self._of_python(request.environment) == self._of_python(self._environment)

    def _of_python(self, environment: Mapping[str, str]) -> dict[str, str]:
        obeyed = OBEYED[self._name]
        return {key: value for key, value in environment.items() if key.startswith("PYTHON") and key not in obeyed}

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), *PACKAGES[self._name]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        # A package that cannot be imported ends the template. Then whole starts show what is wrong.
        self._is_ready = self._socket.recv(_MESSAGE_BYTES_MAX) == _READY

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        """Fork a child; return its process id."""
        assert self._socket is not None
        with self._lock:
            # A child of the template forks the program and ends. The nearest ancestor that adopts orphans becomes the
            # parent of the program. This process adopts them only now, and not the orphans of programs under test.
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(streams))
                answers = [self._socket.recv(_MESSAGE_BYTES_MAX) for _ in ("the child's id", "it is adopted")]
            finally:
                _adopt_orphans(False)
        assert all(answers), f"the template of {self._name} has ended"
        return next(int(answer) for answer in answers if int(answer))

    def close(self) -> None:
        """End the template. It ends by itself if this process does, because its socket closes then, too."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


def _adopt_orphans(adopts: bool) -> None:
    done = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)
    assert done == 0, os.strerror(ctypes.get_errno())


# In the template


def serve(packages: Sequence[str], connection: socket.socket) -> Request | None:
    """Import the packages, then fork a child for each request.

    Returns the request in the child, and None in the template when the tests have ended.
    """
    for package in packages:
        _import(package)
    for module in [it for it in sys.modules.values() if it.__name__.startswith(("hypothesis", "_hypothesis"))]:
        # With this word, pytest does not complain that it can no longer rewrite the assertions of its plugin.
        module.__doc__ = f"{module.__doc__} PYTEST_DONT_REWRITE"
    gc.collect()
    gc.freeze()
    connection.send(_READY)
    while True:
        message, streams, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, 3)
        if not message:
            return None
        request = Request(*json.loads(message))
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            _become(request, streams)
            connection.send(b"%d" % os.getpid())
            connection.close()
            return request
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)
        connection.send(b"0")


def _import(name: str) -> None:
    package = importlib.import_module(name.removesuffix(".*"))
    for found in pkgutil.iter_modules(package.__path__) if name.endswith(".*") else ():
        if found.name != "__main__":
            importlib.import_module(f"{package.__name__}.{found.name}")


def _become(request: Request, streams: Sequence[int]) -> None:
    if request.is_session:
        os.setsid()
    if request.group >= 0:
        os.setpgid(0, request.group)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in set(streams) - {0, 1, 2}:
        os.close(stream)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    _open_streams()
    path = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    first = [] if request.environment.get("PYTHONSAFEPATH") else [request.folder]
    sys.path[:0] = [*first, *(folder for folder in path if folder and folder not in sys.path)]
    random.seed()


def _open_streams() -> None:
    """Open Python's standard streams anew, as its start does."""
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        buffering = 0 if is_unbuffered and number else -1
        new = io.TextIOWrapper(
            open(number, "wb" if number else "rb", buffering=buffering, closefd=False),  # noqa: SIM115
            encoding=old.encoding,
            errors=old.errors,
            newline="\n" if number else None,
            line_buffering=number == 2 or (number == 1 and os.isatty(number)),
            write_through=is_unbuffered,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _main() -> None:
    handle, *packages = sys.argv[1:]
    request = serve(packages, socket.socket(fileno=int(handle)))
    if request is None:
        return
    sys.argv = [request.module, *request.arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        _end(end.code or 0)
    _end(0)


def _end(code: int) -> None:
    """End as Python does, but do not take the modules of the template apart: most programs run for less time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # What was lost may still complain: a task whose exception was never retrieved logs it when it is collected.
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
    except OSError:
        return  # Python's own end reports it
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()
