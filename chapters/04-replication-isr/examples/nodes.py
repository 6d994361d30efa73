"""Start, kill and stop nodes of this chapter on this machine: one command of a lesson for each event.

    python chapters/04-replication-isr/examples/nodes.py start 1 2 3    start these nodes, and wait until they serve
    python chapters/04-replication-isr/examples/nodes.py kill 3         kill -9: the process is gone, its disk is not
    python chapters/04-replication-isr/examples/nodes.py burn 2         kill -9, and the disk is gone as well
    python chapters/04-replication-isr/examples/nodes.py stop           stop all nodes cleanly

Node 1 is the controller. A follower that has been behind for two seconds leaves the in-sync set; with Kafka's thirty
seconds, a lesson would be long. Everything is in the folder `fresh`:

    fresh/2          the data directory of node 2
    fresh/2.log      its messages, and fresh/2.address, fresh/2.pid
    fresh/address    the address of node 1, for clients
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FRESH = Path("fresh")
CONTROLLER = 1
SETTINGS = ("--set", "replica.lag.time.max.ms=2000")
WAIT_S = 30


def start(node_id: int) -> subprocess.Popen[bytes]:
    """Start a node at its old address, or at any free port."""
    known = FRESH / f"{node_id}.address"
    listen = known.read_text() if known.exists() else "127.0.0.1:0"
    controller = [] if node_id == CONTROLLER else [f"{CONTROLLER}@{(FRESH / 'address').read_text()}"]
    program = [sys.executable, "-m", "minibroker.replicas", "serve", str(node_id), str(FRESH / str(node_id)), listen]
    with (FRESH / f"{node_id}.ready").open("wb") as ready, (FRESH / f"{node_id}.log").open("ab") as log:
        process = subprocess.Popen([*program, *controller, *SETTINGS], stdout=ready, stderr=log)
    (FRESH / f"{node_id}.pid").write_text(str(process.pid))
    return process


def wait(node_id: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a node serves, and note its address."""
    deadline_s = time.monotonic() + WAIT_S
    while not (ready := (FRESH / f"{node_id}.ready").read_text()).startswith("ready: "):
        if process.poll() is not None or time.monotonic() > deadline_s:
            sys.exit(f"node {node_id} does not serve; see {FRESH / f'{node_id}.log'}")
        time.sleep(0.05)
    address = ready.removeprefix("ready: ").strip()
    (FRESH / f"{node_id}.address").write_text(address)
    if node_id == CONTROLLER:
        (FRESH / "address").write_text(address)
    print(f"node {node_id} serves at {address}")


def end(node_id: int, how: signal.Signals) -> None:
    """Send a signal, and wait until the process is gone."""
    file = FRESH / f"{node_id}.pid"
    pid = int(file.read_text())
    os.kill(pid, how)
    deadline_s = time.monotonic() + WAIT_S
    while is_running(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    file.unlink()


def is_running(pid: int) -> bool:
    """Whether a process runs. A process that has ended may wait in the system's table for its parent (a zombie)."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def main(command: str, *words: str) -> None:
    """Do to the nodes what the command says."""
    FRESH.mkdir(exist_ok=True)
    nodes = [int(word) for word in words]
    if command == "start":
        # The others must know the address of the controller before they start.
        for together in ([it for it in nodes if it == CONTROLLER], [it for it in nodes if it != CONTROLLER]):
            for node_id, process in [(node_id, start(node_id)) for node_id in together]:
                wait(node_id, process)
    for node_id in nodes if command in ("kill", "burn") else []:
        end(node_id, signal.SIGKILL)
        if command == "burn":
            shutil.rmtree(FRESH / str(node_id))
    for file in sorted(FRESH.glob("*.pid"), reverse=True) if command == "stop" else []:
        end(int(file.stem), signal.SIGTERM)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("start", "kill", "burn", "stop"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
