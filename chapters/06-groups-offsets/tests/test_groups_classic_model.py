"""Random clients of a classic group, and what must hold whatever they do."""

from classic_driver import Driver
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.tables.join_group import JoinGroupResponse
from minibroker.groups.tables.sync_group import SyncGroupResponse
from minibroker.wire.codes import ErrorCode

PROTOCOLS = st.sampled_from([["range"], ["range", "sticky"], ["sticky", "range"], ["own", "range"]])
SESSIONS = st.sampled_from([6_000, 10_000, 120_000])
REBALANCES = st.sampled_from([5_000, 60_000, 400_000])
PARTITIONS = range(5)


class ModelClient:
    """A client, which knows only what it was told."""

    def __init__(self, name: str, instance_id: str | None, session_ms: int, rebalance_ms: int) -> None:
        self.name = name
        self.instance_id = instance_id
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.protocols = ["range"]
        self.forget()

    def forget(self) -> None:
        """Start anew, as a process that has just begun."""
        self.member_id = ""
        self.generation_id = -1
        self.members: list[str] = []
        self.has_synced = False


class ClassicGroupModel(RuleBasedStateMachine):
    """Joins, syncs, leaves, heartbeats, failures of the log, take-overs, and time, in any order."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.waiting: dict[str, ModelClient] = {}
        self.tickets = 0
        self.generation_id = 0
        self.owners: dict[tuple[int, int, int], str] = {}
        self.coordinator = 0
        self.live: list[ModelClient] = []

    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 100]))
    def configure(self, delay_ms: int, max_size: int) -> None:
        self.driver = Driver(initial_rebalance_delay_ms=delay_ms, max_size=max_size)

    def _ticket(self, client: ModelClient) -> str:
        self.tickets += 1
        self.waiting[f"{client.name}-{self.tickets}"] = client
        return f"{client.name}-{self.tickets}"

    def _settle(self) -> None:
        """Hand every answer to its client, and see that no partition has two owners in a generation."""
        for ticket in [it for it in self.waiting if not self.driver.is_parked(it)]:
            client, answer = self.waiting.pop(ticket), self.driver.answers[ticket]
            if isinstance(answer, JoinGroupResponse):
                client.member_id, client.generation_id = answer.member_id, answer.generation_id
                client.members = [it.member_id for it in answer.members]
                client.has_synced = False
            elif isinstance(answer, SyncGroupResponse):
                client.has_synced = True
                for partition in answer.assignment:
                    # A new coordinator may count a generation again that the log does not have.
                    place = (self.coordinator, client.generation_id, partition)
                    owner = client.instance_id or client.member_id
                    assert self.owners.setdefault(place, owner) == owner, f"{partition} has two owners"
            elif self.driver.code(ticket) in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id = ""
            elif self.driver.code(ticket) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                # It cannot go on in this group: the process ends, and is started again.
                client.forget()

    # Events -----------------------------------------------------------------------------------------------------------

    @rule(target=clients, instance_id=st.sampled_from([None, None, "i", "j"]), session=SESSIONS, rebalance=REBALANCES)
    def start(self, instance_id: str | None, session: int, rebalance: int) -> ModelClient:
        client = ModelClient(f"c{len(self.live)}x", instance_id, session, rebalance)
        if instance_id is not None:
            # A process is started again after its predecessor has stopped.
            self.live = [it for it in self.live if it.instance_id != instance_id]
        self.live.append(client)
        self.join(client, ["range"], 9)
        return client

    @rule(client=clients, protocols=PROTOCOLS, version=st.sampled_from([3, 8, 9]))
    def join(self, client: ModelClient, protocols: list[str], version: int) -> None:
        client.protocols = protocols
        for _attempt in range(2):
            ticket = self._ticket(client)
            self.driver.join(
                ticket,
                client.member_id,
                instance_id=client.instance_id if version >= 5 else None,
                protocols=dict.fromkeys(protocols, b""),
                version=version,
                session_ms=client.session_ms,
                rebalance_ms=client.rebalance_ms,
            )
            needs_id = not self.driver.is_parked(ticket) and self.driver.code(ticket) is ErrorCode.MEMBER_ID_REQUIRED
            self._settle()
            if not needs_id:
                return

    @rule(client=clients)
    def sync(self, client: ModelClient) -> None:
        assignments = {
            member_id: bytes(it for it in PARTITIONS if it % len(client.members) == at)
            for at, member_id in enumerate(client.members)
        }
        self.driver.sync(
            self._ticket(client),
            client.member_id,
            assignments,
            generation_id=client.generation_id,
            instance_id=client.instance_id,
        )
        self._settle()

    @rule(client=clients)
    def heartbeat(self, client: ModelClient) -> None:
        before_ms = self.driver.group.deadline_ms()
        self.driver.heartbeat(client.member_id, client.generation_id, instance_id=client.instance_id)
        assert self.driver.group.deadline_ms() in (before_ms, self.driver.now_ms + client.session_ms)

    @rule(client=consumes(clients))
    def leave(self, client: ModelClient) -> None:
        self.driver.leave(self._ticket(client), client.member_id)
        self._settle()
        self.live = [it for it in self.live if it is not client]

    @rule(client=consumes(clients))
    def crash(self, client: ModelClient) -> None:
        self.live = [it for it in self.live if it is not client]

    @rule()
    def behave(self) -> None:
        """Every live client does what a client should, until the group is stable and each partition has an owner."""
        self.driver.refuses_with = None
        live = self.live[: self.driver.settings.max_size]
        if not live:
            return
        for client in live:
            if client.protocols != ["range"]:
                self._restart(client)
        for _round in range(600):
            if self.driver.group.state is GroupState.STABLE and all(self._is_done(it) for it in live):
                break
            for client in live:
                self._go_on(client)
            self.wait(2_500)
        else:
            raise AssertionError("the group does not become stable")
        members = self.driver.group.members()
        assert sorted(partition for it in members for partition in it.assignment) == list(PARTITIONS)

    def _restart(self, client: ModelClient) -> None:
        """Start a client again. What it waits for is answered to nobody."""
        gone = ModelClient(client.name, client.instance_id, client.session_ms, client.rebalance_ms)
        self.waiting = {ticket: gone if it is client else it for ticket, it in self.waiting.items()}
        client.protocols = ["range"]
        client.forget()

    def _is_done(self, client: ModelClient) -> bool:
        code = self.driver.heartbeat(client.member_id, client.generation_id, instance_id=client.instance_id)
        return client.has_synced and code is ErrorCode.NONE

    def _go_on(self, client: ModelClient) -> None:
        code = self.driver.heartbeat(client.member_id, client.generation_id, instance_id=client.instance_id)
        if client in self.waiting.values():
            return
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        if code is not ErrorCode.NONE:
            self.join(client, ["range"], 9)
        elif not client.has_synced:
            self.sync(client)

    @rule(ms=st.sampled_from([1, 1_000, 3_000, 5_000, 10_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.driver.run(ms)
        self._settle()

    @rule(code=st.sampled_from([None, None, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def refuse_records(self, code: ErrorCode | None) -> None:
        self.driver.refuses_with = code

    @rule()
    def take_over(self) -> None:
        """Another node becomes the coordinator. Requests that were parked fail with the connection."""
        if not self.driver.log:
            return
        self.coordinator += 1
        self.waiting.clear()
        self.driver.take_over()
        self.generation_id = self.driver.group.generation_id

    # What must hold ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_generation_never_falls(self) -> None:
        if self.driver.group.state is GroupState.DEAD:
            # A group whose first join was refused is forgotten, as a shard does.
            self.driver.group = self.driver.new_group()
        assert self.driver.group.generation_id >= self.generation_id
        self.generation_id = self.driver.group.generation_id

    @invariant()
    def a_parked_request_belongs_to_a_member(self) -> None:
        members = self.driver.group._members
        parked = [*members.joins, *members.syncs]
        assert set(parked) <= set(members.by_id)
        assert sorted(str(it) for it in [*members.joins.values(), *members.syncs.values()]) == sorted(self.waiting)

    @invariant()
    def the_state_fits_the_members(self) -> None:
        group, members = self.driver.group, self.driver.group._members
        assert (group.leader_id in members.by_id) if members else group.leader_id is None
        assert group.state is not GroupState.EMPTY or not members
        assert not members.syncs or group.state is GroupState.COMPLETING_REBALANCE
        assert not members.joins or group.state is GroupState.PREPARING_REBALANCE
        assert not members or members.candidates()

    @invariant()
    def another_coordinator_loads_the_same_stable_group(self) -> None:
        group = self.driver.group
        if group.state is not GroupState.STABLE:
            return
        record = group.record()
        if self.driver.refuses_with is None and group.is_stored:
            assert record.value == self.driver.log[-1]
        if len(group.members()) > self.driver.settings.max_size:
            # A static member that stays away does not count while others join. A new coordinator lets all join again.
            return
        other = self.driver.new_group()
        other.load(self.driver.log[-1], self.driver.now_ms)
        assert other.record().value == self.driver.log[-1]

    def teardown(self) -> None:
        """Every request is answered in the end, and no time limit is left when all members are gone."""
        self.driver.refuses_with = None
        self.driver.run(4_000_000)
        self._settle()
        assert not self.waiting
        assert not self.driver.group.members()
        assert self.driver.group.deadline_ms() is None


TestClassicGroupModel = ClassicGroupModel.TestCase
