"""Code that all chapter programs share: checked options and readable errors.

Wrong usage prints one line and exits with 2. A failure prints one line and exits with 1. Ctrl-C exits with 130. If the
reader of a pipe ends first, as `head` does, no error is printed.
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
    """Run a command and return its exit code; a failure becomes one line."""
    try:
        try:
            return command()
        finally:
            # Flush earlier output, so that it is printed before the error line.
            sys.stdout.flush()
    except BrokenPipeError:
        # The pipe has no reader any more, so stdout's buffer must not be flushed into it at exit.
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
    """A parser that reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and end the program."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message}; try --help\n")


# Files --------------------------------------------------------------------------------------------------------------


def open_file(path: str) -> OSFile:
    """Open a regular file for reading; refuse anything else."""
    demand_file(path)
    return OSFiles().open(path, create=False, writable=False)


def demand_file(path: str) -> None:
    """Refuse directories, devices and pipes. A device or a pipe has no size and may have no end."""
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
    """Read the separator of key and value."""
    if not text:
        raise argparse.ArgumentTypeError("the separator must not be empty; omit this option for records without keys")
    return text


def _whole_number(text: str, *, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)
