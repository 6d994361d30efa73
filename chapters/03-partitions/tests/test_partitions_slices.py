"""Long requests in slices: the steps of a generator, and a request that a handler answers in parts."""

from typing import Any

from cases import case

from minibroker.partitions.registry import Answer, Call, Session
from minibroker.partitions.slices import PARTITIONS, Steps, in_parts, sliced
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Response
from minibroker.wire.tables.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from minibroker.wire.tables.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from minibroker.wire.uuids import NO_UUID

HEADER = RequestHeader(20, 6, 1, None)


def call(count: int, timeout_ms: int = 1000) -> Call[Any]:
    topics = [DeleteTopicState(name=f"t{n}", topic_id=NO_UUID) for n in range(count)]
    return Call(DeleteTopicsRequest(topics=topics, timeout_ms=timeout_ms), 6, HEADER, 0, Session("test"))


def result(name: str | None, code: int = 0) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=NO_UUID, error_code=code, error_message=None)


class Turns:
    """Wakes a wait for turns, as a server does, and counts the turns."""

    def __init__(self, answer: Answer) -> None:
        assert isinstance(answer, Wait)
        self.waiting: Waiting[Response] = Waiting()
        self.answers: list[Any] = []
        self.turns = 0
        self.turn = answer.turn
        self.waiting.park(answer, self.answers.append, now_ms=0)

    def take(self, count: int) -> None:
        assert self.turn is not None
        for _ in range(count):
            self.turns += 1
            self.waiting.wake(self.turn)
            self.waiting.settle()


def test_the_first_slice_is_done_at_once_and_the_rest_in_later_turns() -> None:
    done: list[int] = []

    def steps(count: int) -> Steps:
        for number in range(count):
            done.append(number)
            yield None
        return DeleteTopicsResponse(responses=[])

    assert isinstance(sliced(steps(9), steps_per_turn=10), DeleteTopicsResponse)
    done.clear()
    turns = Turns(sliced(steps(25), steps_per_turn=10))
    assert len(done) == 10
    turns.take(1)
    assert (len(done), turns.answers) == (20, [])
    turns.take(1)
    assert (len(done), len(turns.answers)) == (25, 1)


def test_a_request_is_answered_in_parts_and_the_responses_are_joined() -> None:
    sizes: list[int] = []

    def handler(part: Call[DeleteTopicsRequest]) -> Answer:
        sizes.append(len(part.request.topics))
        return DeleteTopicsResponse(responses=[result(it.name) for it in part.request.topics])

    whole = in_parts(handler, "topics", "responses", size=10)
    assert isinstance(whole(call(10)), DeleteTopicsResponse)
    turns = Turns(whole(call(25)))
    turns.take(4)
    assert sizes == [10, 10, 10, 5]
    assert [it.name for it in turns.answers[0].responses] == [f"t{n}" for n in range(25)]


def test_a_topic_with_many_partitions_is_cut_and_its_answers_are_joined() -> None:
    def handler(part: Call[DeleteRecordsRequest]) -> Answer:
        sizes.append([len(it.partitions) for it in part.request.topics])
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        DeleteRecordsPartitionResult(partition_index=it.partition_index, low_watermark=0, error_code=0)
                        for it in topic.partitions
                    ],
                )
                for topic in part.request.topics
            ]
        )

    whole = in_parts(handler, "topics", "topics", size=10, inner=PARTITIONS)
    for counts, expected in {
        (4, 4): [[4, 4]],
        (4, 5): [[4], [5]],
        (25, 2, 3): [[10], [10], [5, 2], [3]],
        (2, 20, 0, 0): [[2], [10], [10], [0, 0]],
    }.items():
        with case(counts):
            sizes: list[list[int]] = []
            topics = [
                DeleteRecordsTopic(
                    name=f"t{number}",
                    partitions=[DeleteRecordsPartition(partition_index=it, offset=0) for it in range(count)],
                )
                for number, count in enumerate(counts)
            ]
            answer: Any = whole(Call(DeleteRecordsRequest(topics=topics, timeout_ms=0), 2, HEADER, 0, Session("test")))
            if isinstance(answer, Wait):
                turns = Turns(answer)
                turns.take(len(expected) + 1)
                (answer,) = turns.answers
            assert sizes == expected
            found = [(it.name, [one.partition_index for one in it.partitions]) for it in answer.topics]
            assert found == [(f"t{number}", list(range(count))) for number, count in enumerate(counts)]


def test_a_part_that_waits_delays_the_next_part_and_has_its_own_answer_for_a_timeout() -> None:
    committed: list[int] = []
    proposed: list[int] = []

    def handler(part: Call[DeleteTopicsRequest]) -> Answer:
        names = [it.name for it in part.request.topics]
        proposed.append(len(names))

        def response(code: int) -> Response:
            return DeleteTopicsResponse(responses=[result(name, code) for name in names])

        return Wait(("a",), 10, lambda: response(0) if committed else None, lambda: response(7))

    turns = Turns(in_parts(handler, "topics", "responses", size=10)(call(30, timeout_ms=0)))
    turns.take(3)
    assert proposed == [10]
    assert turns.turn is not None
    assert turns.turn.is_pausing
    committed.append(1)
    turns.take(1)
    committed.clear()
    turns.take(2)
    assert proposed == [10, 10]
    turns.waiting.expire(60_000)
    codes = [it.error_code for it in turns.answers[0].responses]
    assert codes == [0] * 10 + [7] * 20
