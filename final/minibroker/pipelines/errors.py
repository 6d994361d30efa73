"""What a pipeline refuses or reports, in one line."""


class PipelineError(Exception):
    """Anything that this room raises."""


class PipelineFailed(PipelineError):
    """A query ended with an error; the checkpoint says where the next run goes on."""


class SparkMissing(PipelineError):
    """The extra `spark` is not installed."""


class ArchiveInvalid(PipelineError):
    """A folder that is no archive, or one that is in use."""
