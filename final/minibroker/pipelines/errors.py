"""The errors of pipelines. Each message is one line."""

from minibroker.log.errors import ExpectedError


class PipelineError(ExpectedError):
    """The base of all errors of this package."""


class PipelineFailed(PipelineError):
    """A query ended with an error; the next run continues from the checkpoint."""


class ArchiveInvalid(PipelineError):
    """A folder that is not an archive, or an archive that is in use."""
