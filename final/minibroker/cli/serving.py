"""Starts a node for `minibroker serve`: collects its settings, reports when it is ready, and explains failures."""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import click

from minibroker.broker.keys import declare_every_key
from minibroker.broker.node import broker_node
from minibroker.cli.options import settings_of
from minibroker.cli.properties import Properties, read_properties
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.partitions.node import serve as serve_node
from minibroker.partitions.server import Tracer
from minibroker.quorum.member import QuorumMember
from minibroker.transfer.loops import run

FOR_A_SINGLE_NODE = {"offsets.topic.replication.factor": "1"}
"""The settings of a node without a file and without voters, which is a cluster of one node."""


@dataclass(frozen=True)
class Settings:
    """All settings, and the file from which some of them come."""

    values: dict[str, str]
    file: Properties


def settings_from(*, data: str | None, listen: str | None, file: str | None, pairs: Sequence[str]) -> Settings:
    """Merge the settings: --set overrides the file, and the options override --set."""
    properties = read_properties(file) if file else Properties("")
    values = {**properties.values, **settings_of(pairs, "--set")}
    if file is None and "controller.quorum.voters" not in values:
        values = FOR_A_SINGLE_NODE | values
    if data is not None:
        values = {name: value for name, value in values.items() if name != "log.dir"} | {"log.dirs": data}
    if listen is not None:
        values["listeners"] = f"PLAINTEXT://{listen}"
    return Settings(values, properties)


def serve(settings: Settings, *, trace: bool, is_child: bool = False) -> None:
    """Run a node until a signal stops it. A child process also stops when its stdin ends."""
    config = _config(settings)
    if is_child:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    run(_run(config, trace=trace, is_child=is_child))


async def _run(config: NodeConfig, *, trace: bool, is_child: bool) -> None:
    node = broker_node(config, _tracer() if trace else None)

    def on_ready() -> None:
        assert isinstance(node.cluster, QuorumMember)
        if not is_child:
            click.echo(f"{node.cluster.whose_data()}; stop with Ctrl-C", err=True)
            click.echo(f"try: minibroker topics list --bootstrap-server {node.address}", err=True)
        click.echo(f"ready: {node.address}")
        sys.stdout.flush()

    await serve_node(node, on_ready=on_ready)


def _tracer() -> Tracer:
    # The module is imported only with --trace, so that a broker starts quickly.
    from minibroker.cli.trace import Trace  # noqa: PLC0415

    return Trace(sys.stderr)


def _end_with_parent() -> None:
    """Stop the node when stdin is closed, because then the process that started it has ended."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _config(settings: Settings) -> NodeConfig:
    declare_every_key()
    try:
        return NodeConfig(settings.values)
    except InvalidConfig as error:
        raise click.ClickException(_located(str(error), settings)) from error


def _located(message: str, settings: Settings) -> str:
    """Put the file and the line before a message, if the first setting that it names comes from the file."""
    named = [word for word in re.findall(r"[\w.-]+", message) if word in settings.values]
    is_from_file = named and settings.file.values.get(named[0]) == settings.values[named[0]]
    return f"{settings.file.where(named[0])}: {message}" if is_from_file else message
