"""Owns the bare server: asyncio's streams and nothing else. It runs until SIGTERM; `exchange.start_echo` starts it.

It reads a frame, four bytes of length and so many bytes, and sends it back. Whatever a broker on streams costs beyond
this is what its codec, its handlers and its log cost.
"""

import asyncio
import signal


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send frame after frame back until the client has gone."""
    try:
        while True:
            prefix = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(prefix, "big"))
            writer.write(prefix + frame)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve() -> None:
    """Listen on a free port, say which, and end when told to."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"ready: {host}:{port}", flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
