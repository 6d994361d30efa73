"""What the programs of the chapters share: options that are checked, and endings that a person can read.

Wrong usage is one line and exit code 2, a failure one line and exit code 1, Ctrl-C is 130. A reader that goes away,
such as `head`, is met with silence.
"""

import argparse
import os
import stat
import sys
from collections.abc import Callable
from typing import NoReturn

from minibroker.log.disk import OSFile, OSFiles
from minibroker.log.errors import LogError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

COUNT_MAX = 2**31 - 1  # a batch counts its records in four bytes
OFFSET_MAX = 2**63 - 1
TIMESTAMP_MAX = 253_402_300_799_999  # the last millisecond of the year 9999


def run(name: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code; what the world does wrong becomes one line."""
    try:
        try:
            return command()
        finally:
            # What was printed before a failure stands before the line that tells of it.
            sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads stdout any more, so what is left in its buffer must not be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (LogError, OSError) as error:
        print(f"{name}: {_message(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message}; try --help\n")


# Files --------------------------------------------------------------------------------------------------------------


def open_file(path: str) -> OSFile:
    """Open a file for reading, if it is one."""
    demand_file(path)
    return OSFiles().open(path, create=False, writable=False)


def demand_file(path: str) -> None:
    """Refuse a directory, and a device or a pipe, which have no size and perhaps no end."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise LogError(f"{path}: it is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise LogError(f"{path}: it is not a regular file")


# Options ------------------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Read a number of at least one."""
    return _whole_number(text, least=1, most=COUNT_MAX)


def offset(text: str) -> int:
    """Read an offset."""
    return _whole_number(text, least=0, most=OFFSET_MAX)


def timestamp(text: str) -> int:
    """Read a time in milliseconds since 1970."""
    return _whole_number(text, least=0, most=TIMESTAMP_MAX)


def separator(text: str) -> str:
    """Read what stands between a key and a value."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text separates nothing; without this option there are no keys")
    return text


def _whole_number(text: str, *, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)
