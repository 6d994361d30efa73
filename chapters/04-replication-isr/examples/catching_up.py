"""Has a follower caught up? A minute of a busy partition, judged by the obvious rule and by the leader's.

    python chapters/04-replication-isr/examples/catching_up.py

The leader appends a record every millisecond. The follower fetches every 10 ms. At each fetch it has what the leader
had at the previous one. No clock and no network take part: the time is a number.
"""

from minibroker.replication.leader import Progress

FETCH_MS = 10
LAG_MS_MAX = 30_000
END_MS = 60_000


def main() -> None:
    """Play the minute, and print how far the follower was behind by each rule."""
    progress = Progress(caught_up_ms=0)
    at_end, obvious_ms, behind_ms_max, removed_ms = 0, 0, 0, None
    for now_ms in range(0, END_MS + 1, FETCH_MS):
        leader_end = now_ms + 1
        offset = max(leader_end - FETCH_MS, 0)
        progress.on_fetch(offset, leader_end_offset=leader_end, now_ms=now_ms)
        if offset == leader_end:
            at_end, obvious_ms = at_end + 1, now_ms
        if removed_ms is None and now_ms - obvious_ms > LAG_MS_MAX:
            removed_ms = now_ms
        behind_ms_max = max(behind_ms_max, now_ms - progress.caught_up_ms)
    fetches = END_MS // FETCH_MS + 1
    print(f"the follower is never more than {FETCH_MS} records behind")
    print(f"it asks for the leader's end in {at_end} of {fetches:,} fetches")
    print(f"by the obvious rule it has fallen behind, and is removed after {(removed_ms or 0) / 1000:.0f} s")
    print(f"by the leader's rule it last caught up {behind_ms_max} ms ago at most")


if __name__ == "__main__":
    main()
