"""The time limits of the members of a group of the new protocol. A pure module.

A member has a session, which every heartbeat renews. And it has a time limit to act while the group waits for it: to
give up partitions, or, with the classic protocol, to join again and to sync. The member is removed when one of them
ends. Time limits are not in the log: a new coordinator begins all of them anew.
"""

from minibroker.groups.deadlines import Deadlines


class MemberTimers:
    """When each member is removed unless something happens."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._actions: dict[str, int] = {}
        self._deadlines = Deadlines(self._deadline_of)

    def _deadline_of(self, member_id: str) -> int | None:
        times = [it[member_id] for it in (self._sessions, self._actions) if member_id in it]
        return min(times, default=None)

    def has_session(self, member_id: str) -> bool:
        """Whether the session of a member is known."""
        return member_id in self._sessions

    def renew_session(self, member_id: str, until_ms: int) -> None:
        """The member is alive."""
        self._sessions[member_id] = until_ms
        self._deadlines.update(member_id)

    def wait_for(self, member_id: str, until_ms: int) -> None:
        """The group waits for the member. A time limit that has begun is replaced."""
        self._actions[member_id] = until_ms
        self._deadlines.update(member_id)

    def is_waiting_for(self, member_id: str) -> bool:
        """Whether the group waits for the member already."""
        return member_id in self._actions

    def has_acted(self, member_id: str) -> None:
        """The group waits no longer."""
        self._actions.pop(member_id, None)

    def remove(self, member_id: str) -> None:
        """The member is gone."""
        self._sessions.pop(member_id, None)
        self._actions.pop(member_id, None)

    @property
    def earliest_ms(self) -> int | None:
        """A time before which no time limit ends, or None."""
        return self._deadlines.earliest_ms

    def due(self, now_ms: int, retry_ms: int) -> list[str]:
        """The members whose time is over. They come again after `retry_ms` if they could not be removed."""
        found = list(self._deadlines.due(now_ms))
        for member_id in found:
            self._actions.pop(member_id, None)
            self.renew_session(member_id, now_ms + retry_ms)
        return found
