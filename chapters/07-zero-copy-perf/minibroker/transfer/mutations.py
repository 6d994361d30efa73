"""The quota for changes of topics: each partition that is created or deleted takes a token. A pure module.

Newer clients know THROTTLING_QUOTA_EXCEEDED (KIP-599). While their tokens are used up, topics are refused with this
error, one by one. Older clients do not know it: their topics are accepted, and they must wait afterwards.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from minibroker.metadata.image import Image
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.partitions.waiting import Wait
from minibroker.transfer.usage import Tokens
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response, Struct
from minibroker.wire.tables.create_partitions import CreatePartitionsTopic, CreatePartitionsTopicResult
from minibroker.wire.tables.create_topics import CreatableTopic, CreatableTopicResult
from minibroker.wire.tables.delete_topics import DeletableTopicResult, DeleteTopicState

_MESSAGE = "the quota controller_mutation_rate is exceeded: try again later"


class _Kind(NamedTuple):
    """One of the three APIs."""

    strict_from: int
    """The first version whose clients know the error."""
    requested: tuple[str, ...]
    """The arrays of the request that name topics."""
    answered: str
    cost: Callable[[Any, Image, int], int]
    """The partitions that a topic of the request creates or deletes, given the image and num.partitions."""
    refuse: Callable[[Any], Struct]


def _created(topic: CreatableTopic, image: Image, default: int) -> int:
    if topic.name in image.topics:
        return 0
    return len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default)


def _deleted(topic: DeleteTopicState | str, image: Image, _default: int) -> int:
    name = topic if isinstance(topic, str) else topic.name or image.topic_names.get(topic.topic_id, "")
    return len(image.topics[name].partitions) if name in image.topics else 0


def _grown(topic: CreatePartitionsTopic, image: Image, _default: int) -> int:
    known = image.topics.get(topic.name)
    return 0 if known is None else max(topic.count - len(known.partitions), 0)


_WHY: dict[str, Any] = {"error_code": ErrorCode.THROTTLING_QUOTA_EXCEEDED, "error_message": _MESSAGE}


def _refused_creation(topic: CreatableTopic) -> Struct:
    return CreatableTopicResult(name=topic.name, configs=[], **_WHY)


def _refused_deletion(topic: DeleteTopicState | str) -> Struct:
    if isinstance(topic, str):
        return DeletableTopicResult(name=topic, **_WHY)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, **_WHY)


def _refused_growth(topic: CreatePartitionsTopic) -> Struct:
    return CreatePartitionsTopicResult(name=topic.name, **_WHY)


KINDS = {
    ApiKey.CREATE_TOPICS: _Kind(6, ("topics",), "topics", _created, _refused_creation),
    ApiKey.DELETE_TOPICS: _Kind(5, ("topics", "topic_names"), "responses", _deleted, _refused_deletion),
    ApiKey.CREATE_PARTITIONS: _Kind(3, ("topics",), "results", _grown, _refused_growth),
}
"""The APIs that the quota limits."""


class Mutations:
    """One request that changes topics, and the tokens of its client."""

    def __init__(
        self, key: ApiKey, tokens: Tokens, image: Image, *, default_partitions: int, clock: Callable[[], int]
    ) -> None:
        self._kind = KINDS[key]
        self._response = APIS[key].response
        self._tokens = tokens
        self._image = image
        self._default_partitions = default_partitions
        self._clock = clock

    def answer(self, call: Call[Any], handler: Handler) -> Answer:
        """Pass on the topics for which there are tokens, and refuse the others."""
        request, refused, count = copy.copy(call.request), list[Struct](), 0
        is_strict = call.version >= self._kind.strict_from
        for name in self._kind.requested:
            accepted, more = self._divided(getattr(request, name), is_strict=is_strict)
            setattr(request, name, accepted)
            refused += more
            count += len(accepted)

        def finished(response: Any) -> Response:
            setattr(response, self._kind.answered, [*getattr(response, self._kind.answered), *refused])
            # A newer client waits only if something was refused.
            if refused or not is_strict:
                response.throttle_time_ms = self._tokens.delay_ms(self._clock())
            assert isinstance(response, Response)
            return response

        if refused and not count:
            return finished(self._response(**{self._kind.answered: []}))
        answer = handler(replace(call, request=request))
        if isinstance(answer, Wait):
            return answer.then(finished)
        return None if answer is None else finished(answer)

    def _divided(self, topics: Sequence[Any], *, is_strict: bool) -> tuple[list[Any], list[Struct]]:
        """The topics that are accepted, and the refusals of the others."""
        accepted, refused = [], []
        for topic in topics:
            cost, now_ms = self._kind.cost(topic, self._image, self._default_partitions), self._clock()
            if is_strict and cost and self._tokens.delay_ms(now_ms):
                refused.append(self._kind.refuse(topic))
                continue
            self._tokens.take(cost, now_ms)
            accepted.append(topic)
        return accepted, refused
