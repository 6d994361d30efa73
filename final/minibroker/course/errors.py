"""The errors of the course tool. Every message is one line and says what to do next, if anything can be done.

The errors do not derive from `minibroker.log.errors.ExpectedError`, because the tool must not import a package that it
is about to replace with the learner's copy.
"""


class CourseError(Exception):
    """The command cannot be carried out."""


class WrongUsage(CourseError):
    """The command names something that does not exist."""


class InvalidExercises(CourseError):
    """An `exercises.toml` that contradicts itself or its chapter; a mistake of the course, not of the learner."""


class FunctionNotFound(CourseError):
    """A file does not define the function, or defines it more than once."""
