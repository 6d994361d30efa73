"""Code for all commands that talk to a broker: a connected client, and errors that say what to do next."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import click

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError, ConnectionLost
from minibroker.clients import group_admin, transaction_admin
from minibroker.clients.blocking import Client
from minibroker.clients.errors import BrokerErrors
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataResponseTopic

FAILURES = (ClientError, OSError, click.ClickException)
_NO_CONTROLLER = (
    "there is no controller at the moment, so the request failed. A controller needs a running majority of the voters. "
    "`minibroker cluster status` shows which nodes are down: start them, and try again. If a controller was deposed "
    "while it answered, the change may have been made all the same: look before you repeat it"
)


@contextmanager
def connected(bootstrap: str, *, timeout_ms: int = 30_000) -> Iterator[Client]:
    """A client to which a broker has answered once, so that a broker that is down is reported before any work."""
    with Client(bootstrap, client_id="minibroker-cli", timeout_ms=timeout_ms) as client:
        try:
            client.metadata([])
        except BrokerUnavailable as error:
            raise click.ClickException(f"{error}, or name another with --bootstrap-server") from error
        try:
            yield client
        except ConnectionLost as error:
            raise click.ClickException(
                f"{error}: the node may have stopped; see `minibroker cluster status`"
            ) from error
        except ClientError as error:
            if not _lacks_controller(error):
                raise
            raise click.ClickException(_NO_CONTROLLER) from error


def _lacks_controller(error: ClientError) -> bool:
    """Whether a request was refused because there is no controller."""
    errors = error.errors.values() if isinstance(error, BrokerErrors) else [error]
    return any(isinstance(it, BrokerError) and it.code is ErrorCode.NOT_CONTROLLER for it in errors)


def topic_names(bootstrap: str, *, timeout_ms: int) -> list[str]:
    """The names of all topics except the internal ones."""
    with connected(bootstrap, timeout_ms=timeout_ms) as client:
        return [topic.name or "" for topic in visible_topics(client)]


def group_names(bootstrap: str, *, timeout_ms: int) -> list[str]:
    """The names of all groups."""
    with connected(bootstrap, timeout_ms=timeout_ms) as client:
        return [it.group_id for it in group_admin.list_groups(client)]


def transactional_ids(bootstrap: str, *, timeout_ms: int) -> list[str]:
    """All transactional ids."""
    with connected(bootstrap, timeout_ms=timeout_ms) as client:
        return [it.transactional_id for it in transaction_admin.list_transactions(client)]


def visible_topics(client: Client) -> list[MetadataResponseTopic]:
    """All topics except the internal ones, in the order of their names."""
    topics = client.metadata().topics
    return sorted((topic for topic in topics if not topic.is_internal), key=lambda topic: topic.name or "")


def demand_topics(client: Client, names: Iterable[str]) -> list[MetadataResponseTopic]:
    """The topics of these names; for the first that does not exist, raise an error that suggests the nearest name."""
    found = {topic.name: topic for topic in client.metadata().topics}
    for name in names:
        if name not in found:
            raise no_such_topic(name, [other for other in found if other])
    return [found[name] for name in names]


def no_such_topic(name: str, others: Iterable[str]) -> click.ClickException:
    """An error that suggests the nearest topic, or the command that lists the topics."""
    return _no_such("topic", name, others, "`minibroker topics list` lists the topics")


def no_such_group(name: str, others: Iterable[str]) -> click.ClickException:
    """An error that suggests the nearest group, or the command that lists the groups."""
    return _no_such("group", name, others, "`minibroker groups list` lists the groups")


def no_such_transaction(name: str, others: Iterable[str]) -> click.ClickException:
    """An error that suggests the nearest transactional id, or the command that lists the ids."""
    return _no_such("transactional id", name, others, "`minibroker transactions list` lists the ids")


def _no_such(kind: str, name: str, others: Iterable[str], listing: str) -> click.ClickException:
    near = get_close_matches(name, others, n=1)
    hint = f"did you mean {near[0]}?" if near else listing
    return click.ClickException(f"there is no {kind} {name!r}: {hint}")


def is_unknown(code: int) -> bool:
    """Whether an error code says that a topic does not exist."""
    return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
