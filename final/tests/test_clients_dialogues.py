"""Claims about requests to the controller while there is none, for a moment or for longer."""

from typing import Any

import pytest

from minibroker.client.addresses import Address
from minibroker.client.errors import ClientError, ConnectionLost
from minibroker.clients.core import Ask, ClientConfig, Core, Pause
from minibroker.clients.dialogues import NO_CONTROLLER_MS_MAX, ask_controller
from minibroker.controller.tables.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from minibroker.wire.codes import ErrorCode

REQUEST = ListPartitionReassignmentsRequest(topics=None)
REFUSED = ListPartitionReassignmentsResponse(
    error_code=ErrorCode.NOT_CONTROLLER, error_message="there is no controller"
)
DONE = ListPartitionReassignmentsResponse()
LOST = ConnectionLost("gone")


class Talk:
    """A dialogue with its own clock and given answers; the last answer is repeated."""

    def __init__(self, *answers: object, is_read: bool = False) -> None:
        self.now_ms = 0.0
        self.asked = 0
        core = Core([Address("h", 1)], ClientConfig(), clock=lambda: self.now_ms, chance=lambda: 0.5)
        self._dialogue = ask_controller(core, REQUEST, lambda it: [it.error_code], is_read=is_read)
        self._answers = answers

    def outcome(self) -> Any:
        order = next(self._dialogue)
        try:
            while True:
                order = self._obey(order)
        except StopIteration as stop:
            return stop.value

    def _obey(self, order: Ask | Pause) -> Ask | Pause:
        if isinstance(order, Pause):
            self.now_ms += order.ms
            return self._dialogue.send(None)
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        return self._dialogue.throw(answer) if isinstance(answer, ClientError) else self._dialogue.send(answer)


def test_a_request_waits_for_a_controller_to_be_elected() -> None:
    talk = Talk(REFUSED, REFUSED, DONE)
    assert (talk.outcome(), talk.asked) == (DONE, 3)


def test_the_brokers_refusal_is_returned_if_no_controller_is_elected() -> None:
    talk = Talk(REFUSED)
    assert talk.outcome() is REFUSED
    assert talk.asked > 1
    assert talk.now_ms < NO_CONTROLLER_MS_MAX


def test_a_read_is_sent_again_if_its_answer_is_lost() -> None:
    talk = Talk(LOST, DONE, is_read=True)
    assert (talk.outcome(), talk.asked) == (DONE, 2)
    with pytest.raises(ConnectionLost):
        Talk(LOST, is_read=True).outcome()


def test_a_change_that_may_have_been_made_is_not_sent_again() -> None:
    talk = Talk(LOST, DONE)
    with pytest.raises(ConnectionLost):
        talk.outcome()
    assert talk.asked == 1
