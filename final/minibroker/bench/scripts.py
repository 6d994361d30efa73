"""Owns how the files of a chapter that stand beside its packages are loaded: `bench/bench_*.py` and `labs/lab_*.py`.

What several of them share is a module beside them, such as `labs.pacing`, and later chapters import it as well.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_script(path: Path) -> ModuleType:
    """Load a file by its path, under its own name: its folder is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    # The chapter's folder is on the path already, unless the program was installed as a wheel.
    if str(path.parent.parent) not in sys.path:
        sys.path.append(str(path.parent.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
