"""The examples in the library's docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import allocator
from hora_rl.common.load import ROOT

MODULES = [
    "hora_rl.common.advantages",
    *(m.name for m in pkgutil.walk_packages(allocator.__path__, "allocator.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_the_librarys_page_prints_what_it_shows() -> None:
    page = ROOT / "docs" / "how-to" / "use-in-another-trainer.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted > 9
    assert not found.failed


def test_what_the_library_exports_has_an_example() -> None:
    finder = doctest.DocTestFinder()
    for name in allocator.__all__:
        assert any(test.examples for test in finder.find(getattr(allocator, name))), name
