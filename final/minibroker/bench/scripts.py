"""Owns how the files of a chapter that stand beside its packages are loaded: `bench/bench_*.py` and `labs/lab_*.py`."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_script(path: Path) -> ModuleType:
    """Load a file by its path, under its own name: its folder is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
