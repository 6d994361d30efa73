"""What the course tool refuses. Every message is one line, with what to do next where there is something."""

from minibroker.log.errors import ExpectedError


class CourseError(ExpectedError):
    """The command cannot be carried out."""


class WrongUsage(CourseError):
    """The command names something that does not exist: the caller typed it wrong."""


class InvalidExercises(CourseError):
    """An `exercises.toml` that contradicts itself or its chapter: the course's mistake, not the learner's."""


class FunctionNotFound(CourseError):
    """A file that does not define the function, or defines it more than once."""
