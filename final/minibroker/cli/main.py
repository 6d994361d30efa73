"""The program itself: finds the command, runs it, and turns its outcome into an exit code.

Exit codes: 0 is success, 1 a failure, 2 wrong usage, 130 an interruption by Ctrl-C, 143 the end of a group's member by
SIGTERM. An expected failure is one line on stderr. If the reader of stdout ends early, as `head` does, the program ends
without a message. Any other exception is a bug and shows its traceback.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from minibroker.cli.options import GLOSSARY_EPILOG

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "serve": ("minibroker.cli.serve:serve", "Run one node in the foreground."),
    "up": ("minibroker.cli.up:up", "Run a local cluster in the foreground."),
    "topics": ("minibroker.cli.topics:topics", "Create, list, describe, alter, delete and move topics."),
    "produce": ("minibroker.cli.produce:produce", "Write lines from stdin to a topic."),
    "consume": ("minibroker.cli.consume:consume", "Read a topic."),
    "groups": ("minibroker.cli.groups:groups", "List, describe, reset and delete consumer groups."),
    "transactions": ("minibroker.cli.transactions:transactions", "List, describe and abort transactions."),
    "sql": ("minibroker.cli.sql:sql", "Query topics and groups as tables."),
    "cluster": ("minibroker.cli.cluster:cluster", "Show the state of the cluster; add and remove nodes."),
    "dump": ("minibroker.cli.dump:dump", "Show a log file: batches, records, annotated bytes."),
    "bench": ("minibroker.cli.bench:bench", "Measure a cluster and print percentiles."),
    "course": ("minibroker.cli.course:course", "Work on the course: list, start, check, hint, diff."),
    "lab": ("minibroker.cli.lab:lab", "Run experiments that draw one figure each: list, run."),
    "pipeline": ("minibroker.cli.pipeline:pipeline", "Run data pipelines on Spark: list, run."),
    "plan": ("minibroker.cli.plan:plan", "Calculate capacity from rates and retention."),
    "completion": ("minibroker.cli.completion:completion", "Print a completion script for bash, zsh or fish."),
}
"""For each command: its module and attribute, and its summary, which ``--help`` shows without importing it."""

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


class Program(click.Group):
    """The group of all commands; a command's module is imported when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a command"
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """The names and summaries of the commands of this version, without importing the commands."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 (slow, and --help does not need it)

        found = [
            CompletionItem(name, help=about) for name, (_, about) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands and their summaries for ``--help``, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    name="minibroker",
    cls=Program,
    epilog=GLOSSARY_EPILOG,
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
            return _end_without_a_reader()
        if not _was_expected(error):
            raise
        return _complain(_path(None), str(error), FAILED)
    return result if isinstance(result, int) else DONE


def _end_without_a_reader() -> int:
    # The reader has closed the pipe, so the buffered output must not be flushed into it at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _was_expected(error: Exception) -> bool:
    """Whether an error is expected: the operating system raised it, or a package declares it as expected."""
    # These modules are imported only when an error is shown, because --help does not need them.
    from minibroker.course.errors import CourseError  # noqa: PLC0415
    from minibroker.log.errors import ExpectedError  # noqa: PLC0415

    return isinstance(error, ExpectedError | CourseError | OSError)


def _path(ctx: click.Context | None) -> str:
    """The command as it was typed, such as `minibroker topics`."""
    if ctx is not None:
        return ctx.command_path
    named = [word for word in sys.argv[1:2] if word in COMMANDS]
    return " ".join(["minibroker", *named])


def _complain(path: str, message: str, code: int) -> int:
    click.echo(f"{path}: {message}", err=True)
    return code
