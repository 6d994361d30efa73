"""One test over many cases: it counts once, tries them all, and names those that failed."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]


def each_case(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but within one test. Each case has its own folder in `tmp_path`."""
    listed = (names,) if isinstance(names, str) else names
    cases = [dict(zip(listed, (value,) if isinstance(names, str) else value, strict=True)) for value in values]
    assert cases, "there is nothing to test"

    def decorate(test: Test) -> Test:
        @functools.wraps(test, updated=())
        def run(**fixtures: Any) -> None:
            failures: list[tuple[str, BaseException]] = []
            for number, case in enumerate(cases):
                try:
                    test(**_own_folder(fixtures, number), **case)
                except (Exception, pytest.fail.Exception) as failure:
                    failures.append((_named(case), failure))
            if failures:
                first = failures[0][1]
                first.add_note(f"{len(failures)} of {len(cases)} cases failed: {'; '.join(it for it, _ in failures)}")
                raise first

        signature = inspect.signature(test)
        kept = [it for name, it in signature.parameters.items() if name not in listed]
        assert len(kept) + len(listed) == len(signature.parameters), f"the test takes other arguments than {listed}"
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


def _own_folder(fixtures: dict[str, Any], number: int) -> dict[str, Any]:
    if "tmp_path" not in fixtures:
        return fixtures
    folder: Path = fixtures["tmp_path"] / f"case-{number}"
    folder.mkdir(exist_ok=True)
    return {**fixtures, "tmp_path": folder}


def _named(case: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        text = getattr(value, "__name__", None) or repr(value)
        return text if len(text) <= 100 else f"{text[:97]}..."

    return ", ".join(f"{name}={shown(value)}" for name, value in case.items())
