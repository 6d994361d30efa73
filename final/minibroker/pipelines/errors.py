"""What a pipeline refuses or reports, in one line."""


class PipelineError(Exception):
    """Anything that this room raises."""


class PipelineFailed(PipelineError):
    """A query ended with an error; the checkpoint says where the next run goes on."""


class ArchiveInvalid(PipelineError):
    """A folder that is no archive, or one that is in use."""
