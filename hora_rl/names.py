"""`hora_rl.common` and `common` are one module, whichever of the two is a folder here.

In a checkout the folders are at the top and `hora_rl.common` is the other name. In an installed wheel they
are in `hora_rl`, and `common` is the other name unless the user has a `common`: then `import common` finds
theirs, and HORA does not notice. A wheel's `.pth` file loads this in every Python process of its environment,
so Ray's workers, Serve and spawned processes see the same names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

OURS = ("actors", "allocator", "common", "deploy", "evaluation", "learner")
PREFIX = "hora_rl."
INSTALLED = Path(__file__).with_name("common").is_dir()
"""Whether this is a wheel, with the folders in `hora_rl`, and not a checkout."""


class Names(MetaPathFinder, Loader):
    """Finds a module under its other name. A module is loaded once, under its real name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = self._real_name(fullname)
        found = find_spec(real) if real else None
        if found is None:
            return None
        spec = ModuleSpec(fullname, self, origin=found.origin, loader_state=found.name)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def _real_name(self, name: str) -> str | None:
        """The real name where `name` is the other one, None where it is not ours to find."""
        if not INSTALLED:
            short = name.removeprefix(PREFIX)
            return short if short != name and short.partition(".")[0] in OURS else None
        top, inner, _ = name.partition(".")
        if top not in OURS:
            return None
        taken = sys.modules.get(top) is not sys.modules.get(PREFIX + top) if inner else any(self._others(top))
        return None if taken else PREFIX + name

    def _others(self, name: str) -> Iterator[ModuleSpec]:
        """What else `import name` would find: a module, or a folder that holds Python files."""
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, None)
            folders = (spec.submodule_search_locations or []) if spec else []
            if spec and (spec.origin or any(any(Path(folder).glob("*.py")) for folder in folders)):
                yield spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run already; it keeps the spec of its real name, which importlib has replaced."""
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m` with the other name."""
        real = find_spec(self._real_name(fullname) or "")
        loader = real.loader if real else None
        return loader.get_code(real.name) if real and isinstance(loader, InspectLoader) else None


def install() -> None:
    """Find both names in this process from now on."""
    if not any(isinstance(finder, Names) for finder in sys.meta_path):
        sys.meta_path.insert(0, Names())
