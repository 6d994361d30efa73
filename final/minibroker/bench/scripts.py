"""Loads the scripts of a chapter, which are not in a package: `bench/bench_*.py` and `labs/lab_*.py`.

Code that several scripts share is in a module in the same folder, such as `labs.pacing`; later chapters import it, too.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_script(path: Path) -> ModuleType:
    """Load a file by its path, as a module with the file's name, because its folder is not a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    # The chapter's folder is on sys.path already, unless the program was installed as a wheel.
    if str(path.parent.parent) not in sys.path:
        sys.path.append(str(path.parent.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
