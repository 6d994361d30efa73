"""What the course tool refuses. Every message is one line, with what to do next where there is something.

These errors have a base of their own, beside `minibroker.log.errors.ExpectedError`: the tool must not import a package
that it is about to replace with the learner's.
"""


class CourseError(Exception):
    """The command cannot be carried out."""


class WrongUsage(CourseError):
    """The command names something that does not exist: the caller typed it wrong."""


class InvalidExercises(CourseError):
    """An `exercises.toml` that contradicts itself or its chapter: the course's mistake, not the learner's."""


class FunctionNotFound(CourseError):
    """A file that does not define the function, or defines it more than once."""
