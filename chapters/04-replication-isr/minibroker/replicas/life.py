"""Which life of a node this is, and whether it still has all that it had in the one before.

A process that is killed leaves its page cache to the kernel: whatever it had written is there when it starts again.
Only a machine that stops takes with it what was not flushed. So a node remembers with its broker epoch on which start
of the machine it was running. If that is the same one still, or if it was shut down in order, it has all that was
counted in its name; otherwise it may not, and must say so. A disk that fails may have lost what it was said to hold,
too: then the note is removed, if the disk still lets that happen.

    <data>/broker-epoch    {"version": 0, "brokerEpoch": 17, "bootId": "0a4f…"}
"""

import json
import os
import subprocess
from contextlib import suppress

from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.segments import checkpoint

BROKER_EPOCH = "broker-epoch"


def boot_id() -> str | None:
    """What names this start of the machine; None if the system does not tell."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    with suppress(OSError, subprocess.SubprocessError):
        # macOS.
        found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=True, timeout=5)
        return found.stdout.decode().strip() or None
    return None


def previous_broker_epoch(files: Files, path: str, *, boot: str | None, is_clean: bool) -> int:
    """The broker epoch that this directory's logs are certain to be of, or -1."""
    try:
        found = json.loads(checkpoint.content(files, f"{path}/{BROKER_EPOCH}") or b"")
        epoch, then = int(found["brokerEpoch"]), found["bootId"]
    except (ValueError, KeyError, TypeError, LogError):
        return NO_BROKER_EPOCH
    return epoch if is_clean or (boot is not None and then == boot) else NO_BROKER_EPOCH


def remember_broker_epoch(files: Files, path: str, broker_epoch: int, boot: str | None) -> None:
    """Write down the epoch of this life, durably: from now on logs are of it."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch, "bootId": boot})
    checkpoint.write(files, f"{path}/{BROKER_EPOCH}", text.encode())


def forget_broker_epoch(path: str) -> None:
    """The disk has failed: the next life cannot be certain of anything. Around `Files`, which takes no more."""
    with suppress(OSError):
        os.unlink(f"{path}/{BROKER_EPOCH}")
