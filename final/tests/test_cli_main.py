"""The program as a process: arguments, stdout and stderr, and an exit code."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from click.testing import CliRunner

from minibroker.cli.main import COMMANDS, program
from minibroker.course.errors import CourseError
from minibroker.log.errors import ExpectedError

PROGRAM = (sys.executable, "-m", "minibroker.cli")

# The program with one more command, `planted`, whose body is given.
WITH_COMMAND = """
import sys, click
from minibroker.cli import main as cli
@click.command()
def planted():
{body}
cli.COMMANDS["planted"] = ("__main__:planted", "planted")
cli.main()
"""


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=60, check=False)


def minibroker(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(*PROGRAM, *arguments, **env)


def with_command(body: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-c", WITH_COMMAND.format(body=textwrap.indent(body, "    ")), "planted")


def test_help_lists_all_commands() -> None:
    result = minibroker("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout


def test_help_names_the_glossary_on_the_front_page_and_where_terms_are_many() -> None:
    for arguments in ([], ["cluster"], ["topics"], ["groups"], ["transactions"]):
        shown = CliRunner().invoke(program, [*arguments, "--help"], prog_name="minibroker").output
        assert shown.splitlines()[-1].strip().startswith("The glossary, docs/glossary.md in the repository"), arguments


def test_all_commands_of_the_contract_exist() -> None:
    contract = "serve up topics produce consume groups transactions sql cluster dump bench pipeline lab plan course"
    assert sorted(COMMANDS) == sorted([*contract.split(), "completion"])


def test_each_command_that_works_has_help() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(program, [name, "--help"], prog_name="minibroker")
        assert result.exit_code == 0, (name, result.output)
        assert result.stdout.startswith(f"Usage: minibroker {name} "), name


HELPS = (
    "",
    *("serve", "up", "topics", "cluster", "produce", "consume", "plan", "completion", "dump", "bench", "lab"),
    *(f"topics {it}" for it in ("create", "list", "describe", "alter", "delete", "reassign", "elect-leaders")),
    *("groups", "sql", *(f"groups {it}" for it in ("list", "describe", "reset-offsets", "delete"))),
    *("transactions", *(f"transactions {it}" for it in ("list", "describe", "abort"))),
    *(
        "cluster status",
        "lab list",
        "lab run",
        *(f"bench {it}" for it in ("produce", "consume", "latency", "failover")),
    ),
)
# Prints the slow modules that are loaded after the help of each command, one line per command.
SLOW_IMPORTS = """
import sys
from click.testing import CliRunner
from minibroker.cli.main import program
slow = ("rich", "crc32c", "lz4", "cramjam", "asyncio")
for line in sys.argv[1:]:
    assert CliRunner().invoke(program, [*line.split(), "--help"]).exit_code == 0, line
    loaded = [it for it in sys.modules if it.split(".")[0] in slow]
    loaded += [it for it in sys.modules if it.startswith("minibroker.") and not it.startswith("minibroker.cli")]
    print(line, sorted(loaded), sep=": ")
"""


def test_help_imports_nothing_that_is_slow() -> None:
    result = run(sys.executable, "-c", SLOW_IMPORTS, *HELPS)
    assert result.stdout.splitlines() == [f"{line}: []" for line in HELPS], result.stderr


def test_version_is_one_line() -> None:
    result = minibroker("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("minibroker ")
    assert len(result.stdout.splitlines()) == 1


def test_the_installed_script_is_the_same_program() -> None:
    script = Path(sys.prefix, "bin", "minibroker")
    assert run(str(script), "--help").stdout == minibroker("--help").stdout


def test_an_unknown_command_is_wrong_usage_in_one_line() -> None:
    result = minibroker("dmup")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "dmup" in result.stderr
    assert "minibroker --help" in result.stderr


def test_an_unknown_option_is_wrong_usage_in_one_line() -> None:
    result = minibroker("dump", "--sideways")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "minibroker dump --help" in result.stderr


def test_no_arguments_show_the_help_and_are_wrong_usage() -> None:
    result = minibroker()
    assert result.returncode == 2
    assert "Usage: minibroker" in result.stderr


def test_a_missing_file_is_one_line_and_exit_code_1_or_2(tmp_path: Path) -> None:
    result = minibroker("dump", str(tmp_path / "nowhere.log"))
    assert result.returncode in (1, 2)
    assert len(result.stderr.splitlines()) == 1
    assert "nowhere.log" in result.stderr


def test_dump_says_that_a_file_is_not_a_log(tmp_path: Path) -> None:
    notes = tmp_path / "notes.log"
    notes.write_text("# minibroker\n\nA distributed log broker in Python.\n")
    result = minibroker("dump", "--verify", str(notes))
    assert result.returncode == 1
    assert result.stdout.startswith("not a log: batch at position 0: ")
    readme = notes.rename(tmp_path / "README.md")
    result = minibroker("dump", str(readme))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1


def test_dump_refuses_a_file_that_is_not_regular(tmp_path: Path) -> None:
    endless = tmp_path / "endless.log"
    endless.symlink_to("/dev/zero")
    result = minibroker("dump", str(endless))
    assert result.returncode == 1
    assert result.stderr == f"minibroker dump: {endless}: it is not a regular file\n"


def test_an_error_that_a_package_declares_is_one_line() -> None:
    result = with_command(
        "from minibroker.log.errors import OffsetOutOfRange\nraise OffsetOutOfRange('7 not in [0, 5)')"
    )
    assert result.returncode == 1
    assert result.stderr == "minibroker planted: 7 not in [0, 5)\n"


def test_an_error_of_the_operating_system_is_one_line() -> None:
    result = with_command("open('/nowhere/at/all')")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "/nowhere/at/all" in result.stderr


def test_every_error_that_a_package_declares_is_expected() -> None:
    packages = [path.parent.name for path in Path(__file__).parents[2].glob("*/**/minibroker/*/errors.py")]
    assert len(packages) >= 9
    for package in packages:
        errors = importlib.import_module(f"minibroker.{package}.errors")
        for name, kind in vars(errors).items():
            if isinstance(kind, type) and issubclass(kind, Exception):
                assert issubclass(kind, ExpectedError | CourseError), f"{package}: {name}"


def test_a_bug_shows_its_traceback() -> None:
    result = with_command("raise KeyError('a bug')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_a_command_may_return_its_exit_code() -> None:
    assert with_command("return 1").returncode == 1
    assert with_command("raise SystemExit(1)").returncode == 1
    assert with_command("click.echo('done')").returncode == 0


def started(body: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WITH_COMMAND.format(body=textwrap.indent(body, "    ")), "planted"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_cleanly_with_130() -> None:
    with started("print('ready', flush=True)\nimport signal\nsignal.pause()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.strip() == ""


def test_the_program_ends_without_a_message_when_its_reader_goes_away() -> None:
    with started("for n in range(100_000):\n    click.echo(f'line {n}')") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        stderr = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert stderr == ""


def test_the_program_ends_without_a_message_when_its_reader_never_reads() -> None:
    command = f"'{sys.executable}' -m minibroker.cli --help | true"
    result = run("sh", "-c", command)
    assert result.returncode == 0
    assert result.stderr == ""
