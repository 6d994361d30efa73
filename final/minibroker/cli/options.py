"""Options and texts that several commands share. This module imports nothing slow, because `--help` imports it."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "MINIBROKER_BOOTSTRAP_SERVER"
COMPLETION_TIMEOUT_MS = 500
"""The shell is blocked while it waits for completions, so the wait is short."""
GLOSSARY = "docs/glossary.md"
GLOSSARY_EPILOG = f"The glossary, {GLOSSARY} in the repository, explains the terms."

_SERVER = re.compile(r"(?:\[[0-9a-fA-F:.%a-zA-Z]+\]|[^\s:,\[\]]+):[0-9]{1,5}")


def _servers(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    for server in value.split(","):
        if _SERVER.fullmatch(server.strip()) is None:
            raise click.BadParameter(f"{server!r} is not HOST:PORT, such as {DEFAULT_BOOTSTRAP}.")
    return value


def optional_servers(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the addresses of a cluster, if they were given."""
    return value and _servers(ctx, param, value)


def listener(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Check an address to listen on: HOST:PORT, or :PORT for every address of this machine."""
    if value is not None and _SERVER.fullmatch(f"any{value}" if value.startswith(":") else value) is None:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as {DEFAULT_BOOTSTRAP}.")
    return value


bootstrap_option = click.option(
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT",
    default=DEFAULT_BOOTSTRAP,
    envvar=BOOTSTRAP_VARIABLE,
    callback=_servers,
    show_default=True,
    show_envvar=True,
    help="Any node of the cluster.",
)


def complete_topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """The names of the broker's topics; an empty list instead of an error if no broker answers in time."""
    return _complete(ctx, "topic_names", incomplete)


def complete_groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """The names of the broker's groups; an empty list instead of an error if no broker answers in time."""
    return _complete(ctx, "group_names", incomplete)


def complete_transactions(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """The broker's transactional ids; an empty list instead of an error if no broker answers in time."""
    return _complete(ctx, "transactional_ids", incomplete)


def _complete(ctx: click.Context, kind: str, incomplete: str) -> "list[CompletionItem]":
    # The client is slow to import, and only completion needs it here.
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    from minibroker.cli import connecting  # noqa: PLC0415

    servers = ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP
    try:
        names = getattr(connecting, kind)(servers, timeout_ms=COMPLETION_TIMEOUT_MS)
    except connecting.FAILURES:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


topic_argument = click.argument("topic", shell_complete=complete_topics)
group_argument = click.argument("group", shell_complete=complete_groups)
TIMESTAMP_MAX = 253_402_300_799_999  # the last millisecond of the year 9999


def regex(text: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}.") from None
    if not text:
        raise click.BadParameter("an empty regular expression matches no topic.")
    return text


def timestamp(text: str) -> int:
    """Read milliseconds since 1970, or a date: `2026-01-31T12:00:00Z`."""
    if text.isdecimal() and int(text) <= TIMESTAMP_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a date such as 2026-01-31T12:00:00Z."
        ) from None
    # A date without a time zone is in UTC, as are all times that minibroker prints.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def settings_of(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Read `name=value` pairs; if a name is given twice, the last value counts."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE.", param_hint=f"'{option}'")
        settings[name.strip()] = value.strip()
    return settings
