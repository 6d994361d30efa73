"""The buffers of long requests: they grow as bytes arrive, and are used again."""

from minibroker.transfer.buffers import INBOX_BYTES, Buffers, LongFrame


def test_a_buffer_grows_with_the_bytes_and_not_with_the_announced_length() -> None:
    frame = LongFrame(Buffers(), 100 * 1024**2, memoryview(b"abc"))
    assert len(frame.buffer) < 1024**2
    while not frame.is_whole:
        room = frame.room(1024**2)
        frame.arrived += len(room)
        assert len(frame.buffer) <= max(2 * frame.arrived, 1024**2)
    assert len(frame.view()) == frame.length
    assert bytes(frame.view()[:4]) == b"abc\0"


def test_a_buffer_of_usual_size_is_used_again_and_a_large_one_is_not() -> None:
    for length, is_kept in ((1024**2, True), (50 * 1024**2, False), (INBOX_BYTES + 1, False)):
        buffers = Buffers()
        frame = LongFrame(buffers, length, memoryview(b""))
        while not frame.is_whole:
            frame.arrived += len(frame.room(1024**2))
        used = frame.buffer
        frame.give_back()
        assert (LongFrame(buffers, length, memoryview(b"")).buffer is used) == is_kept, length


def test_a_request_that_waits_keeps_its_bytes() -> None:
    buffers = Buffers()
    held = buffers.inbox[:3]
    held[:] = b"abc"
    buffers.renew()
    buffers.inbox[:3] = b"xyz"
    assert bytes(held) == b"abc"


def test_only_a_few_buffers_are_kept() -> None:
    buffers, content = Buffers(), memoryview(bytes(1024**2))
    frames = [LongFrame(buffers, len(content), content) for _ in range(10)]
    used = [it.buffer for it in frames]
    for it in frames:
        it.give_back()
    again = [LongFrame(buffers, len(content), content).buffer for _ in range(10)]
    assert 0 < sum(any(it is other for other in used) for it in again) < 10
