"""Whether a node still has all the records of its previous incarnation.

A process that is killed leaves its page cache to the kernel: data that it had written is still there when it starts
again. Only a machine that stops loses data that was not flushed. So a node writes its broker epoch and the machine's
boot id into a file. If the boot id is still the same, or if the node was shut down cleanly, it has all its records.
Otherwise it may have lost records, and must report this when it registers. A disk that fails may have lost records,
too: then the file is removed, if the disk still allows it.

    <data>/broker-epoch    {"version": 0, "brokerEpoch": 17, "bootId": "0a4f…"}

A full disk loses nothing that was written before. `minibroker up` restarts a node on a full disk again and again, and
each incarnation that registers gets a new epoch. If the node could not write that epoch, its next start would count as
one after a power cut. So the file has a fixed size and is overwritten in place, which needs no new space.

A node may die after the controller has registered it, and before it has written the new epoch. So it first writes the
incarnation id with which it registers. Its next start finds that id, and finishes the registration that was begun: the
controller answers with the epoch that it has given to this incarnation. No other process has used that epoch.
"""

import json
import os
import subprocess
from contextlib import suppress

from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files, write_all
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.segments import checkpoint
from minibroker.wire.errors import WireError
from minibroker.wire.uuids import parse_uuid, uuid_text

BROKER_EPOCH = "broker-epoch"
FILE_BYTES = 256  # enough for the text with the largest epoch, and within one sector, so that it is never torn


def boot_id() -> str | None:
    """The id of the machine's current boot; None if the system has no such id."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    with suppress(OSError, subprocess.SubprocessError):
        # macOS.
        found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=True, timeout=5)
        return found.stdout.decode().strip() or None
    return None


def previous_broker_epoch(files: Files, path: str, *, boot: str | None, is_clean: bool) -> int:
    """The broker epoch up to which this data directory certainly has all records, or -1."""
    try:
        found = json.loads(checkpoint.content(files, f"{path}/{BROKER_EPOCH}") or b"")
        epoch, then = int(found["brokerEpoch"]), found["bootId"]
    except (ValueError, KeyError, TypeError, LogError):
        return NO_BROKER_EPOCH
    return epoch if is_clean or (boot is not None and then == boot) else NO_BROKER_EPOCH


def begun_registration(files: Files, path: str) -> bytes | None:
    """The incarnation id of a registration that was begun and not finished, or None."""
    try:
        return parse_uuid(json.loads(checkpoint.content(files, f"{path}/{BROKER_EPOCH}") or b"")["incarnationId"])
    except (ValueError, KeyError, TypeError, LogError, WireError):
        return None


def remember_broker_epoch(
    files: Files, path: str, broker_epoch: int, boot: str | None, *, begun: bytes | None = None
) -> None:
    """Write the last broker epoch of this node, durably, and the incarnation of a registration that begins now."""
    found = {"version": 0, "brokerEpoch": broker_epoch, "bootId": boot}
    if begun is not None:
        found["incarnationId"] = uuid_text(begun)
    text = json.dumps(found).encode().ljust(FILE_BYTES)
    name = f"{path}/{BROKER_EPOCH}"
    # If the file is missing, or was written by an older program with another size, replace it as a whole.
    if len(checkpoint.content(files, name) or b"") != len(text):
        checkpoint.write(files, name, text)
        return
    file = files.open(name, create=False)
    try:
        write_all(file, text, 0)
        file.fsync()
    finally:
        file.close()


def forget_broker_epoch(path: str) -> None:
    """Remove the file after the disk has failed. `Files` refuses all changes then, so this calls the system."""
    with suppress(OSError):
        os.unlink(f"{path}/{BROKER_EPOCH}")
