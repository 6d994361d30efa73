"""`final/setup.sh` does nothing when nothing changed, finishes what was left half done, and fails in one line.

A stand-in replaces the installer `uv`, so these tests need no network and little time. The messages of a failing
installer were taken from real runs of pip and uv.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

UV = f"""#!/bin/sh
case $1 in
--version) ;;
venv)
    echo venv >> "$CALLS"
    for place; do :; done
    mkdir -p "$place/bin"
    echo "VIRTUAL_ENV=$place" > "$place/bin/activate"
    printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' > "$place/bin/python"
    chmod +x "$place/bin/python"
    touch "$place/pyvenv.cfg" ;;
pip)
    for what; do :; done
    echo "install $what" >> "$CALLS"
    [ -z "$SAYS" ] || {{ echo "$SAYS" >&2; exit 1; }} ;;
esac
"""


class Clone:
    """A clone that holds only the files that set-up reads."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "final").mkdir(parents=True)
        shutil.copy(ROOT / "final/setup.sh", place / "final/setup.sh")
        shutil.copy(ROOT / "pyproject.toml", place / "pyproject.toml")
        self.write_script("bin/uv", UV)
        self.temporary = place.with_name("temporary")
        self.temporary.mkdir()

    def write_script(self, name: str, text: str) -> Path:
        path = self.place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def command(self, extras: str = "", **env: str) -> tuple[list[str], dict[str, str]]:
        path = f"{self.place / 'bin'}:/usr/bin:/bin"
        facts = {"PATH": path, "PYTHON": sys.executable, "CALLS": str(self.place / "calls"), "SAYS": ""}
        facts["TMPDIR"] = str(self.temporary)
        kept = {name: value for name, value in os.environ.items() if name not in ("VENV", "NO_SETUP")}
        return ["sh", str(self.place / "final/setup.sh"), extras], kept | facts | env

    def setup(self, extras: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        command, environment = self.command(extras, **env)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def calls(self) -> list[str]:
        """The calls of the installer since this was called last."""
        calls = self.place / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone with a space")


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure."""
    assert result.returncode == 1, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("setup: ")
    return lines[0]


def test_the_first_run_installs_and_the_second_does_nothing(clone: Clone) -> None:
    first = clone.setup()
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0] == "setup: installing minibroker into .venv"
    assert clone.calls() == ["venv", "install ."]
    second = clone.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert clone.calls() == []


def test_extras_that_are_installed_satisfy_fewer_and_not_more(clone: Clone) -> None:
    clone.setup("dev,docs")
    assert clone.calls() == ["venv", "install .[dev,docs]"]
    clone.setup()
    clone.setup("docs")
    assert clone.calls() == []
    clone.setup("dev,docs,spark")
    assert clone.calls() == ["install .[dev,docs,spark]"]


def test_a_change_of_pyproject_installs_again_into_the_same_environment(clone: Clone) -> None:
    clone.setup()
    clone.calls()
    with (clone.place / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    clone.setup()
    assert clone.calls() == ["install ."]


def test_an_environment_whose_interpreter_vanished_is_built_anew(clone: Clone) -> None:
    clone.setup()
    clone.calls()
    python = clone.place / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    assert clone.setup().returncode == 0
    assert clone.calls() == ["venv", "install ."]


def test_a_moved_repository_builds_its_environment_anew(clone: Clone) -> None:
    clone.setup()
    clone.calls()
    clone.place = clone.place.rename(clone.place.with_name("moved"))
    assert clone.setup().returncode == 0
    assert clone.calls() == ["venv", "install ."]


def test_a_run_that_failed_half_way_is_finished_by_the_next(clone: Clone) -> None:
    assert clone.setup(SAYS="killed").returncode == 1
    clone.calls()
    assert clone.setup().returncode == 0
    assert clone.calls() == ["install ."]
    assert clone.setup().stdout == ""


def test_two_runs_at_once_install_once(clone: Clone) -> None:
    command, env = clone.command()
    runs = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait(timeout=60) for run in runs] == [0, 0]
    assert clone.calls() == ["venv", "install ."]
    assert not (clone.place / ".venv.lock").exists()


def test_a_lock_that_is_removed_between_two_looks_is_no_error(clone: Clone) -> None:
    """The first `mkdir` fails, as if another run had the lock, and then there is no lock."""
    tried = clone.place / "tried"
    fails_once = f'case $1 in *.lock) [ -e "{tried}" ] || {{ touch "{tried}"; exit 1; }} ;; esac'
    clone.write_script("bin/mkdir", f'#!/bin/sh\n{fails_once}\nexec {shutil.which("mkdir")} "$@"\n')
    assert clone.setup().returncode == 0
    assert tried.exists()


def test_a_folder_that_cannot_be_written_is_named(clone: Clone) -> None:
    (clone.place / "file").touch()
    line = complaint(clone.setup(VENV=str(clone.place / "file" / "venv")))
    assert "cannot write in" in line
    assert "VENV=" in line


def test_the_lock_of_a_run_that_died_is_taken_over(clone: Clone) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(timeout=60)
    lock = clone.place / ".venv.lock"
    lock.mkdir()
    (lock / "pid").write_text(f"{gone.pid}\n")
    assert clone.setup().returncode == 0


def test_an_environment_made_by_other_means_is_trusted_when_asked(clone: Clone) -> None:
    assert clone.setup("dev", NO_SETUP="1").returncode == 0
    assert clone.calls() == []


def test_an_old_python_is_named_with_its_version(clone: Clone) -> None:
    old = clone.write_script("bin/oldpython", "#!/bin/sh\ncase $2 in *print*) echo 3.9.18 ;; *) exit 1 ;; esac\n")
    line = complaint(clone.setup(PYTHON=str(old)))
    assert all(said in line for said in ("needs Python 3.11 or newer", "3.9.18", "PYTHON=")), line


def test_a_missing_python_is_named(clone: Clone) -> None:
    line = complaint(clone.setup(PYTHON="/nowhere/python3"))
    assert "/nowhere/python3 does not run here" in line


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("ERROR: Could not find a version that satisfies the requirement x (from versions: none)", "no connection"),
        (
            "NewConnectionError: Failed to establish a new connection: [Errno 111] Connection refused",
            "connection refused",
        ),
        ("error: Failed to fetch: https://x\n  Caused by: dns error: failed to lookup", "dns error"),
        ("ReadTimeoutError: HTTPSConnectionPool: Read timed out.", "timed out"),
    ],
)
def test_an_unreachable_index_is_named_with_what_to_do(clone: Clone, says: str, reason: str) -> None:
    line = complaint(clone.setup(SAYS=says))
    assert list(clone.temporary.iterdir()) == []
    assert "no answer from the package index" in line
    assert f"({reason})" in line
    assert "UV_INDEX_URL" in line


def test_a_full_disk_is_named_with_the_space_that_is_left(clone: Clone) -> None:
    line = complaint(clone.setup(SAYS="ERROR: [Errno 28] No space left on device"))
    assert "the disk is full" in line
    assert "MB free at .venv" in line
    assert "about 60 MB needed" in line


def test_any_other_failure_gives_the_last_line_and_the_log(clone: Clone) -> None:
    line = complaint(clone.setup(SAYS="first\nthe moon is in the way"))
    assert "the moon is in the way" in line
    log = Path(line.rpartition(" ")[2])
    assert list(clone.temporary.iterdir()) == [log]
    assert log.read_text() == "first\nthe moon is in the way\n"


def test_a_folder_that_is_no_environment_is_never_cleared(clone: Clone) -> None:
    mine = clone.place / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    line = complaint(clone.setup(VENV="mine"))
    assert "is not a virtual environment" in line
    assert (mine / "thesis.txt").read_text() == "years of work"
