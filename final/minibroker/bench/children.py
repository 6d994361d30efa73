"""Servers that stop when the context of their benchmark or lab ends. `launcher` runs the processes."""

import os
from pathlib import Path

from minibroker.bench.context import Context
from minibroker.bench.launcher import Command, Server, serve_command

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def environment(context: Context) -> dict[str, str]:
    """The environment of a process under test, in which Python stores compiled bytecode.

    With PYTHONDONTWRITEBYTECODE, every start would compile the whole program, although for a user only the first start
    does. So if that variable is set, it is removed, and the bytecode is stored in the folder under test.
    """
    own = dict(os.environ)
    if own.pop(NO_BYTECODE, ""):
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
