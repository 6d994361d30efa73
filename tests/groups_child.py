"""A member of a group in a process of its own, for `groups_crews.Child`: it says what it does, one line of JSON each.

It imports little, because a test starts many of them.
"""

import json
import select
import sys
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

Partition = tuple[str, int]


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(settings: dict[str, Any], topics: list[str]) -> None:
    consumer = Consumer(settings)
    read: dict[Partition, int] = {}

    def names(partitions: list[TopicPartition]) -> list[Partition]:
        return [(it.topic, it.partition) for it in partitions]

    consumer.subscribe(
        topics,
        on_assign=lambda _consumer, given: say(assigned=names(given)),
        on_revoke=lambda _consumer, taken: say(revoked=names(taken)),
    )
    while True:
        for message in consumer.consume(100, timeout=0.05):
            if not message.error():
                where = (message.topic() or "", message.partition() or 0)
                read[where] = message.offset() or 0
                say(read=[[*where, read[where]]])
        if select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline():
            say(answers=[commit(consumer, read)])


def commit(consumer: Consumer, read: Mapping[Partition, int]) -> str:
    offsets = [TopicPartition(*it, offset + 1) for it, offset in read.items()]
    try:
        found = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as refused:
        return str(refused.args[0].name())
    codes = {it.error.name() for it in found or () if it.error is not None}
    return ",".join(sorted(codes)) or "committed"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
