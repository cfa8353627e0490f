"""How a wheel is built (`[tool.setuptools.cmdclass]`): the six folders move into `hora_rl`, and their imports
of each other get that name. An editable install is left as it is.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools.command.build_py import build_py

# pip's build has setuptools alone and loads this file by its path: `hora_rl.names` cannot be imported there.
OURS = ("actors", "allocator", "common", "deploy", "evaluation", "learner")
PACKAGE = "hora_rl"
STARTUP = f"import {PACKAGE}\n"
"""A `.pth` file's line: Python runs it at every start (`hora_rl.names` says why)."""

Edit = tuple[int, int, int, str]
"""Line (from 0), first and last column, and the text that goes there."""


class BuildPy(build_py):
    """setuptools' own step, then the move into one package."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # what an earlier build left would go in too
        super().run()
        nest(Path(self.build_lib))


def nest(root: Path) -> None:
    """Move the six folders in `root` into `hora_rl`, with their imports. Raises ValueError for one that
    cannot be renamed."""
    for name in OURS:
        shutil.move(root / name, root / PACKAGE / name)
    for file in (root / PACKAGE).rglob("*.py"):
        file.write_text(renamed(file.read_text(), str(file)))
    (root / f"{PACKAGE}.pth").write_text(STARTUP)


def renamed(source: str, place: str = "<source>") -> str:
    """`source` with `from common.x import y` as `from hora_rl.common.x import y`; line numbers stay."""
    lines = source.splitlines(keepends=True)
    for line, begin, end, text in sorted(_edits(ast.parse(source), lines, place), reverse=True):
        raw = lines[line].encode()  # columns of `ast` are bytes
        lines[line] = (raw[:begin] + text.encode() + raw[end:]).decode()
    return "".join(lines)


def _edits(tree: ast.Module, lines: list[str], place: str) -> Iterator[Edit]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _ours(node.module or ""):
            found = re.match(rb"from\s+", lines[node.lineno - 1].encode()[node.col_offset :])
            assert found is not None
            column = node.col_offset + found.end()
            yield node.lineno - 1, column, column, f"{PACKAGE}."
        elif isinstance(node, ast.Import):
            for name in filter(lambda alias: _ours(alias.name), node.names):
                yield _of_import(name, place)


def _of_import(alias: ast.alias, place: str) -> Edit:
    """`import common` as `import hora_rl.common as common`: the name that it binds stays."""
    line, begin, end = alias.lineno - 1, alias.col_offset, alias.col_offset + len(alias.name)
    if alias.asname is None and "." in alias.name:
        raise ValueError(f"{place}:{alias.lineno}: import {alias.name}: write from … import instead")
    bound = "" if alias.asname else f" as {alias.name}"
    return line, begin, end, f"{PACKAGE}.{alias.name}{bound}"


def _ours(module: str) -> bool:
    return module.partition(".")[0] in OURS
