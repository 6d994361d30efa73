"""What a pipeline refuses or reports, in one line."""

from minibroker.log.errors import ExpectedError


class PipelineError(ExpectedError):
    """Anything that this package raises."""


class PipelineFailed(PipelineError):
    """A query ended with an error; the checkpoint says where the next run goes on."""


class ArchiveInvalid(PipelineError):
    """A folder that is no archive, or one that is in use."""
