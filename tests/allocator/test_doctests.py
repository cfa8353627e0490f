"""The examples in the library's docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import allocator
from hora_rl.common.load import ROOT

ROOMS = pkgutil.walk_packages(allocator.__path__, "allocator.")
MODULES = ["hora_rl.common.advantages", *(m.name for m in ROOMS)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.mark.parametrize(
    ("page", "least"), [("how-to/use-in-another-trainer", 10), ("explanation/method", 3)]
)
def test_pages_print_what_they_show(page: str, least: int) -> None:
    found = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert found.attempted >= least
    assert not found.failed


def test_what_the_library_exports_has_an_example() -> None:
    finder = doctest.DocTestFinder()
    for name in allocator.__all__:
        assert any(test.examples for test in finder.find(getattr(allocator, name))), name
