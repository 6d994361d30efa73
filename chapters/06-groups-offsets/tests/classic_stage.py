"""A stage for directed scenarios of a classic group: a text has the steps, and the result is written below each step.

    > start a                    a client starts: it joins, again with its id if that is asked for
    > start a static             the same, with its name as its group.instance.id
    > start a protocols range,sticky      the protocols that it supports; range if left out
    > join a                     it joins again
    > sync a                     it syncs; the leader assigns the partitions 0 1 2 3 to the members in turn
    > sync a keeps               the leader assigns cooperatively: what another member owns is not given away yet
    > heartbeat a b              these members send heartbeats
    > leave a / crash a          it leaves; it stops without a word, and forgets its id
    > wait 3                     seconds pass, without heartbeats
    > take-over                  another node becomes the coordinator

An answer is written when it is sent, after the name of the client that gets it.
"""

from collections import defaultdict

import simulation_scenario
from classic_driver import Driver

from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.tables.join_group import JoinGroupResponse
from minibroker.groups.tables.sync_group import SyncGroupResponse
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

PARTITIONS = "0123"


class StageClient:
    """What a client remembers."""

    def __init__(self, name: str, *, is_static: bool, protocols: list[str]) -> None:
        self.name = name
        self.instance_id = name if is_static else None
        self.protocols = protocols
        self.member_id = ""
        self.generation_id = -1
        self.members: list[tuple[str, bytes]] = []  # if it is the leader
        self.owned = ""

    @property
    def metadata(self) -> dict[str, bytes]:
        """Its subscription: the partitions that it owns, as in the cooperative protocol."""
        owned = self.owned if "cooperative" in self.protocols else ""
        return dict.fromkeys(self.protocols, f"owns {owned}".encode())


class Stage(simulation_scenario.Stage):
    """Plays a scenario of one group."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.clients: dict[str, StageClient] = {}
        self.waiting: dict[str, StageClient] = {}
        self._tickets = 0

    def _ticket(self, client: StageClient) -> str:
        self._tickets += 1
        ticket = f"{client.name}{self._tickets}"
        self.waiting[ticket] = client
        return ticket

    # Steps ------------------------------------------------------------------------------------------------------------

    def on_start(self, name: str, *options: str) -> list[str]:
        protocols = options[-1].split(",") if "protocols" in options else ["range"]
        client = self.clients[name] = StageClient(name, is_static="static" in options, protocols=protocols)
        return self._join(client)

    def on_join(self, name: str) -> list[str]:
        return self._join(self.clients[name])

    def _join(self, client: StageClient) -> list[str]:
        ticket = self._ticket(client)
        self.driver.join(ticket, client.member_id, instance_id=client.instance_id, protocols=client.metadata)
        needs_id = not self.driver.is_parked(ticket) and self.driver.code(ticket) is ErrorCode.MEMBER_ID_REQUIRED
        lines = self._answers()
        return [*lines, *self._join(client)] if needs_id else lines

    def on_sync(self, name: str, *options: str) -> list[str]:
        client = self.clients[name]
        assignments = _assign(client.members, is_cooperative="keeps" in options)
        ticket = self._ticket(client)
        self.driver.sync(
            ticket,
            client.member_id,
            assignments,
            generation_id=client.generation_id,
            instance_id=client.instance_id,
        )
        return self._answers()

    def on_heartbeat(self, *names: str) -> list[str]:
        lines = []
        for client in (self.clients[name] for name in names):
            code = self.driver.heartbeat(client.member_id, client.generation_id, instance_id=client.instance_id)
            lines.append(f"{client.name}: {code.name}")
        return lines

    def on_leave(self, name: str) -> list[str]:
        client = self.clients.pop(name)
        self.driver.leave(self._ticket(client), client.member_id)
        return self._answers()

    def on_crash(self, name: str) -> list[str]:
        gone = self.clients.pop(name)
        self.waiting = {ticket: it for ticket, it in self.waiting.items() if it is not gone}
        return []

    def on_wait(self, seconds: str) -> list[str]:
        self.driver.run(int(seconds) * 1000)
        return self._answers()

    def on_take_over(self) -> list[str]:
        self.driver.take_over()
        return [self._state()]

    # Answers ----------------------------------------------------------------------------------------------------------

    def _answers(self) -> list[str]:
        answered = [ticket for ticket in self.waiting if not self.driver.is_parked(ticket)]
        lines = [self._heard(self.waiting.pop(it), self.driver.answers[it]) for it in answered]
        return [*lines, self._state()]

    def _heard(self, client: StageClient, answer: Response | ErrorCode) -> str:
        if isinstance(answer, JoinGroupResponse):
            client.member_id = answer.member_id
            client.generation_id = answer.generation_id
            client.members = [(it.member_id, it.metadata) for it in answer.members]
            if answer.error_code:
                return f"{client.name}: {ErrorCode(answer.error_code).name} as {answer.member_id}"
            joined = f"generation {answer.generation_id} of {answer.protocol_name} as {answer.member_id}"
            members = f", members {' '.join(it for it, _ in client.members)}" if client.members else ""
            keeps = ", which keeps the assignment" if answer.skip_assignment else ""
            return f"{client.name}: {joined}, leader {answer.leader}{members}{keeps}"
        if isinstance(answer, SyncGroupResponse):
            client.owned = answer.assignment.decode()
            return f"{client.name}: reads {client.owned or 'nothing'}"
        if isinstance(answer, ErrorCode):
            return f"{client.name}: {answer.name}"
        return f"{client.name}: has left"

    def _state(self) -> str:
        group = self.driver.group
        members = " ".join(it.member_id for it in group.members()) or "no members"
        stored = self.driver.log[-1].generation if self.driver.log else "nothing"
        waits = group.state is not GroupState.EMPTY and group.state is not GroupState.STABLE
        parked = sorted({it.name for it in self.waiting.values()}) if waits else []
        waiting = f", {' '.join(parked)} waiting" if parked else ""
        return f"{group.state.value}, generation {group.generation_id}: {members}{waiting}; stored: {stored}"


def _assign(members: list[tuple[str, bytes]], *, is_cooperative: bool) -> dict[str, bytes]:
    """The partitions in turn. A cooperative leader gives a partition away only when its owner has released it."""
    ids = [member_id for member_id, _metadata in members]
    owner = {partition: it for it, metadata in members for partition in metadata.decode().removeprefix("owns ")}
    given: defaultdict[str, str] = defaultdict(str)
    for at, partition in enumerate(PARTITIONS if ids else ""):
        member_id = ids[at % len(ids)]
        if not is_cooperative or owner.get(partition, member_id) == member_id:
            given[member_id] += partition
    return {it: given[it].encode() for it in ids}
