"""What the commands that talk to a broker share: a client, and errors that say what to do next."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import click

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError, ConnectionLost
from minibroker.clients.blocking import Client
from minibroker.clients.errors import BrokerErrors
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataResponseTopic

FAILURES = (ClientError, OSError, click.ClickException)
_NOBODY_DECIDES = (
    "nobody decides at the moment, so nothing was done: a majority of the voters must be there. `minibroker cluster "
    "status` shows who is missing: start it, and try again"
)


@contextmanager
def connected(bootstrap: str, *, timeout_ms: int = 30_000) -> Iterator[Client]:
    """A client whose broker has answered once: whether anybody is there is known before anything else is done."""
    with Client(bootstrap, client_id="minibroker-cli", timeout_ms=timeout_ms) as client:
        try:
            client.metadata([])
        except BrokerUnavailable as error:
            raise click.ClickException(f"{error}, or name another with --bootstrap-server") from error
        try:
            yield client
        except ConnectionLost as error:
            raise click.ClickException(f"{error}: it may have gone; `minibroker cluster status` tells") from error
        except ClientError as error:
            if not _is_undecided(error):
                raise
            raise click.ClickException(_NOBODY_DECIDES) from error


def _is_undecided(error: ClientError) -> bool:
    """Whether it was refused because there is no controller."""
    errors = error.errors.values() if isinstance(error, BrokerErrors) else [error]
    return any(isinstance(it, BrokerError) and it.code is ErrorCode.NOT_CONTROLLER for it in errors)


def topic_names(bootstrap: str, *, timeout_ms: int) -> list[str]:
    """The names of all topics that a person may want to name."""
    with connected(bootstrap, timeout_ms=timeout_ms) as client:
        return [topic.name or "" for topic in visible_topics(client)]


def visible_topics(client: Client) -> list[MetadataResponseTopic]:
    """All topics but those that brokers keep for themselves, by name."""
    topics = client.metadata().topics
    return sorted((topic for topic in topics if not topic.is_internal), key=lambda topic: topic.name or "")


def demand_topics(client: Client, names: Iterable[str]) -> list[MetadataResponseTopic]:
    """The topics of these names; the first that is not there is an error that names the nearest."""
    found = {topic.name: topic for topic in client.metadata().topics}
    for name in names:
        if name not in found:
            raise no_such_topic(name, [other for other in found if other])
    return [found[name] for name in names]


def no_such_topic(name: str, others: Iterable[str]) -> click.ClickException:
    """An error that helps: the name that was perhaps meant, or where the names are."""
    near = get_close_matches(name, others, n=1)
    hint = f"did you mean {near[0]}?" if near else "`minibroker topics list` shows what there is"
    return click.ClickException(f"there is no topic {name!r}: {hint}")


def is_unknown(code: int) -> bool:
    """Whether a code says that a topic is not there."""
    return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
