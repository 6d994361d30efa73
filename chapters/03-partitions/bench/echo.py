"""The bare server: asyncio's streams and nothing else. It runs until SIGTERM; `exchange.start_echo` starts it.

It reads a frame, four bytes of length and that many bytes, and sends it back. The additional cost of a broker on
streams is that of its codec, its handlers and its log.
"""

import asyncio
import signal


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send each frame back until the client disconnects."""
    try:
        while True:
            prefix = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(prefix, "big"))
            writer.write(prefix + frame)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve() -> None:
    """Listen on a free port, print it, and end on SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"ready: {host}:{port}", flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
