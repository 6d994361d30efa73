"""Owns the servers of a benchmark or a lab: each ends with the context at the latest. `launcher` runs the processes."""

import os
from pathlib import Path

from minibroker.bench.context import Context
from minibroker.bench.launcher import Command, Server, serve_command

COMPILES_ALWAYS = "PYTHONDONTWRITEBYTECODE"


def environment(context: Context) -> dict[str, str]:
    """The environment of a process under test, in which Python keeps what it has compiled.

    If it was told not to, every start would compile the whole program, which no second start of a user does: then what
    it compiles goes into the folder under test.
    """
    own = dict(os.environ)
    if own.pop(COMPILES_ALWAYS, ""):
        own["PYTHONPYCACHEPREFIX"] = str(context.directory / "compiled")
    return own


def start(context: Context, command: Command) -> Server:
    """Start a server on any free port, and wait until it serves."""
    server = Server(command, context.directory / "server", environment=environment(context))
    server.start()
    context.on_close(server.stop)
    return server


def broker_on(data: Path, *settings: str) -> Command:
    """The command that runs a broker on a data directory."""
    return lambda listen: serve_command(*settings, data=data, listen=listen)


def serve(context: Context, *settings: str, name: str = "data") -> Server:
    """Start a broker with an empty data directory of its own."""
    return start(context, broker_on(context.directory / name, *settings))
