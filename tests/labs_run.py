"""Runs `minibroker lab run NAME` for the tests of the labs, and checks the files that every lab must write."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.lab import lab


def plain(text: str) -> str:
    """A text without the line breaks that depend on the width."""
    return " ".join(text.split())


def run_lab(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a lab quickly; check that figure, document and output agree and nothing else is left; return the document."""
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    (folder / "scratch").mkdir()
    ended = CliRunner().invoke(lab, ["run", name, "--out", str(folder / "out"), "--dir", str(folder / "scratch")])
    assert ended.exit_code == 0, ended.output
    ElementTree.fromstring((folder / "out" / f"{name}.svg").read_text())
    text = (folder / "out" / f"{name}.json").read_text()
    document: dict[str, Any] = json.loads(text)
    assert document["quick"] is True
    assert all(paragraph in plain(ended.stdout) for paragraph in map(plain, document["reading"]))
    assert str(folder) not in text
    assert list((folder / "scratch").iterdir()) == []
    return document
