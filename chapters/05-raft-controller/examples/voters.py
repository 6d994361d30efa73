"""Print voters for a cluster on this machine, each with a port that is free now.

python chapters/05-raft-controller/examples/voters.py 3
"""

import socket
import sys
from contextlib import ExitStack


def voters(count: int) -> str:
    """The value of `controller.quorum.voters`. All ports are held until all are chosen, so no port is chosen twice."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return ",".join(f"{number}@127.0.0.1:{it.getsockname()[1]}" for number, it in enumerate(held, start=1))


if __name__ == "__main__":
    print(voters(int(sys.argv[1])))
