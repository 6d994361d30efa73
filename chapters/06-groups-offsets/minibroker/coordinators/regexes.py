"""The regular expressions of subscriptions, in linear time.

A client sends the expression, so it may be hostile. Python's `re` backtracks: one short expression could keep the
broker busy for years. RE2 does not backtrack, and Kafka's RE2/J has the same syntax. The library is imported when the
first expression arrives.
"""

from collections.abc import Callable

from minibroker.groups.regexes import InvalidRegex

_COMPILED_BYTES_MAX = 1024**2


def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a whole name matches. Raises `InvalidRegex` if `pattern` is not valid."""
    try:
        import re2  # noqa: PLC0415
    except ImportError as error:
        message = "subscriptions by regular expression need google-re2: install it on the broker"
        raise InvalidRegex(message) from error
    options = re2.Options()
    # RE2 would print each error to the broker's log, and a client could fill the log.
    options.log_errors = False
    options.max_mem = _COMPILED_BYTES_MAX
    try:
        fullmatch = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise InvalidRegex(f"{pattern[:64]!a} is not a regular expression of RE2: {error}") from error
    return lambda name: fullmatch(name) is not None
