"""The time limits of the members of a group of the new protocol. A pure module.

A member has a session, which every heartbeat renews. It has a second time limit while the group waits for it to act: to
give up partitions or, with the classic protocol, to join again or to sync. The member is removed when either of them
ends. Time limits are not in the log: a new coordinator starts all of them again.
"""

from minibroker.groups.deadlines import Deadlines


class MemberTimers:
    """The times at which members are removed, unless they send a heartbeat or act before."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._actions: dict[str, int] = {}
        self._deadlines = Deadlines(self._deadline_of)

    def _deadline_of(self, member_id: str) -> int | None:
        times = [it[member_id] for it in (self._sessions, self._actions) if member_id in it]
        return min(times, default=None)

    def has_session(self, member_id: str) -> bool:
        """Whether the session of a member has begun."""
        return member_id in self._sessions

    def renew_session(self, member_id: str, until_ms: int) -> None:
        """Let the member's session end at `until_ms`."""
        self._sessions[member_id] = until_ms
        self._deadlines.update(member_id)

    def wait_for(self, member_id: str, until_ms: int) -> None:
        """Wait until `until_ms` for the member to act. An earlier call for the member no longer counts."""
        self._actions[member_id] = until_ms
        self._deadlines.update(member_id)

    def is_waiting_for(self, member_id: str) -> bool:
        """Whether the group waits for the member to act."""
        return member_id in self._actions

    def has_acted(self, member_id: str) -> None:
        """Note that the member has acted: the group no longer waits for it."""
        self._actions.pop(member_id, None)

    def remove(self, member_id: str) -> None:
        """Drop both time limits of a member that was removed."""
        self._sessions.pop(member_id, None)
        self._actions.pop(member_id, None)

    @property
    def earliest_ms(self) -> int | None:
        """A time before which no time limit ends, or None if there are none."""
        return self._deadlines.earliest_ms

    def due(self, now_ms: int, retry_ms: int) -> list[str]:
        """The members with a time limit that has ended. A member that is not removed is due again after `retry_ms`."""
        found = list(self._deadlines.due(now_ms))
        for member_id in found:
            self._actions.pop(member_id, None)
            self.renew_session(member_id, now_ms + retry_ms)
        return found
