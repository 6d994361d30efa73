"""The program itself: finds the command, runs it, and turns whatever happens into an exit code.

0 is done, 1 failed, 2 wrong usage, 130 what a shell expects after Ctrl-C. A failure that was to be expected is one line
on stderr; a reader that went away, such as `head`, is none; anything else is a bug and shows its traceback.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from minibroker.cli.pending import PENDING, pending_command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "serve": ("minibroker.cli.serve:serve", "One node, all roles."),
    "up": ("minibroker.cli.up:up", "A local cluster in the foreground."),
    "topics": ("minibroker.cli.topics:topics", "Create, list, describe, alter, delete and move topics."),
    "produce": ("minibroker.cli.produce:produce", "Write lines from stdin to a topic."),
    "consume": ("minibroker.cli.consume:consume", "Read a topic."),
    "cluster": ("minibroker.cli.cluster:cluster", "Nodes, leaders, replicas, and what is wrong."),
    "dump": ("minibroker.cli.dump:dump", "Show a log file: batches, records, annotated bytes."),
    "bench": ("minibroker.cli.bench:bench", "What a cluster can do, in percentiles."),
    "course": ("minibroker.cli.course:course", "The learner's workspace: list, start, check, diff."),
    "lab": ("minibroker.cli.lab:lab", "Experiments that draw one figure each: list, run."),
    "pipeline": ("minibroker.cli.pipeline:pipeline", "Data pipelines on Spark: list, run."),
    "plan": ("minibroker.cli.plan:plan", "Capacity from rates and retention."),
    "completion": ("minibroker.cli.completion:completion", "Teach your shell: bash, zsh or fish."),
}
"""Name → where the command is, and what ``--help`` says of it without importing it."""

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


class Program(click.Group):
    """The group of all commands; a command's module is imported when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Every name, those that work first."""
        return [*COMMANDS, *PENDING]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now."""
        if cmd_name in PENDING:
            return pending_command(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a command"
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """The names that work, without importing what they name."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 (--help does without it)

        found = [
            CompletionItem(name, help=about) for name, (_, about) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Two lists for ``--help``: what works, and what arrives later."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
        with formatter.section("Arrives later"):
            formatter.write_dl([(name, f"{it.summary} ({it.arrives.label})") for name, it in PENDING.items()])


@click.group(
    name="minibroker",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="minibroker", prog_name="minibroker", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """A Kafka-compatible distributed log broker, and the course that builds it."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> NoReturn:
    """Run the program with the arguments of the process."""
    sys.exit(_run())


def _run() -> int:
    try:
        result = program.main(prog_name="minibroker", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG_USAGE
    except click.UsageError as error:
        return _complain(_path(error.ctx), f"{error.format_message()} Try '{_path(error.ctx)} --help'.", WRONG_USAGE)
    except click.ClickException as error:
        return _complain(_path(None), error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
        return INTERRUPTED if interrupted else FAILED
    except Exception as error:
        if isinstance(error, BrokenPipeError):
            return _reader_is_gone()
        if not _was_expected(error):
            raise
        return _complain(_path(None), str(error), FAILED)
    return result if isinstance(result, int) else DONE


def _reader_is_gone() -> int:
    # Nobody reads stdout any more, so what is left in its buffer must not be flushed into the pipe at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _was_expected(error: Exception) -> bool:
    """Whether it is the world's failure: the operating system's, or one that a package declares."""
    # Imported only where an error is to be shown: --help does without them.
    from minibroker.course.errors import CourseError  # noqa: PLC0415
    from minibroker.log.errors import ExpectedError  # noqa: PLC0415

    return isinstance(error, ExpectedError | CourseError | OSError)


def _path(ctx: click.Context | None) -> str:
    """The command as the reader typed it, such as `minibroker topics`."""
    if ctx is not None:
        return ctx.command_path
    named = [word for word in sys.argv[1:2] if word in COMMANDS or word in PENDING]
    return " ".join(["minibroker", *named])


def _complain(path: str, message: str, code: int) -> int:
    click.echo(f"{path}: {message}", err=True)
    return code
