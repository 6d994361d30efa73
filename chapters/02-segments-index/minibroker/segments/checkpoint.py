"""Kafka's checkpoint files: a version, a count, and a line for each partition. A pure module.

    0
    2
    orders 0 1523
    orders 1 88

A checkpoint is replaced as a whole: a temporary file is written, flushed and renamed. So a reader finds either the old
or the new checkpoint, never a mixture.
"""

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files, directory_of, write_all

VERSION = 0
TEMPORARY = ".tmp"


class TopicPartition(NamedTuple):
    """A partition: the name of its topic, and its number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return self.directory

    @property
    def directory(self) -> str:
        """The name of the partition's directory."""
        return f"{self.topic}-{self.partition}"

    @staticmethod
    def is_directory(name: str) -> bool:
        """Whether a directory name has the form TOPIC-NUMBER."""
        topic, _dash, number = name.rpartition("-")
        return bool(topic) and number.isascii() and number.isdigit()

    @classmethod
    def of_directory(cls, name: str) -> "TopicPartition":
        """Parse a directory's name. The partition's number follows the last dash."""
        if not cls.is_directory(name):
            raise LogError(f"{name!r} is not the directory of a partition: its name must be TOPIC-NUMBER")
        topic, _dash, number = name.rpartition("-")
        return cls(topic, int(number))


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of a checkpoint, in a fixed order."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode()


def decode(data: bytes, path: str) -> dict[TopicPartition, int]:
    """Parse a checkpoint, and refuse anything else. Kafka leaves empty files, which have no entries."""
    if not data:
        return {}
    try:
        version, count, *lines = data.decode().splitlines()
        if int(version) != VERSION or int(count) != len(lines):
            raise ValueError(f"version {version}, {count} entries announced, {len(lines)} found")
        return dict(_entry(line) for line in lines)
    except ValueError as error:
        raise LogError(f"{path} is not a checkpoint ({error}): remove it, and the next start checks all logs") from None


def _entry(line: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = line.split()
    return TopicPartition(topic, int(partition)), int(offset)


def read(files: Files, path: str) -> dict[TopicPartition, int]:
    """Read a checkpoint file. A missing file has no entries."""
    return decode(content(files, path) or b"", path)


def content(files: Files, path: str) -> bytes | None:
    """Read a small file as a whole. Return None if the file is missing."""
    try:
        file = files.open(path, create=False, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write(files: Files, path: str, data: bytes, *, durably: bool = True) -> None:
    """Replace a small file as a whole. Without `durably`, a power failure may leave a torn file."""
    file = files.open(path + TEMPORARY)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        if durably:
            file.fsync()
    except OSError:
        files.unlink(path + TEMPORARY)
        raise
    finally:
        file.close()
    files.rename(path + TEMPORARY, path)
    if durably:
        files.fsync_directory(directory_of(path))
