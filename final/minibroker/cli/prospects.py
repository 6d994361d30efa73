"""What an unclean election would do: which replica would lead, and how many records would be lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minibroker.cli.tables import counted
from minibroker.clients.admin import LogEnd


@dataclass(frozen=True)
class Prospect:
    """The result of an unclean election, as far as it can be known before the election."""

    leader_id: int
    end_offset: int
    lost: int
    """The number of offsets by which the longest log goes beyond the new leader's log."""
    silent: Sequence[int]
    """The replicas that did not say where their logs end: only they know what else would be lost."""

    def __str__(self) -> str:
        text = f"node {self.leader_id} would lead, whose log ends at offset {self.end_offset:,}"
        if self.lost:
            text += f"; {counted(self.lost, 'later record')} of an earlier leader would be lost"
        if not self.silent:
            return text + ("" if self.lost else "; no other replica has more records")
        nodes = f"node{'s' if len(self.silent) > 1 else ''} {', '.join(map(str, self.silent))}"
        return f"{text}; records that only {nodes} had would be lost, and their number cannot be known now"


def prospect(
    replicas: Sequence[int], ends: Mapping[int, LogEnd], *, last_leader: int = -1, adding: Sequence[int] = ()
) -> Prospect | None:
    """What an unclean election would do, by the rules of the controller; None if no replica has answered."""
    known = [it for it in replicas if it in ends]
    if not known:
        return None
    leader_id = max(known, key=lambda it: (ends[it], it == last_leader, it not in adding))
    end_offset = ends[leader_id].offset
    longest = max(ends[it].offset for it in known)
    return Prospect(leader_id, end_offset, longest - end_offset, [it for it in replicas if it not in ends])
