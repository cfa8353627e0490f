"""What import contracts cannot see: a room that knows where another one keeps its files."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABOVE = {
    "allocator": {"deploy", "evaluation", "actors", "learner", "common"},
    "common": {"deploy", "evaluation", "actors", "learner", "allocator"},
    "actors": {"deploy", "evaluation", "learner"},
    "learner": {"deploy", "evaluation", "actors"},
    "evaluation": {"deploy"},
}


def parts_of_paths(file: Path) -> set[str]:
    """Every operand of `/` in the file that is a text, split at its own slashes."""
    divided = [n.right for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.BinOp)]
    texts = [n.value for n in divided if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {part for text in texts for part in text.split("/")}


@pytest.mark.parametrize("room", ABOVE)
def test_no_path_leads_to_a_room_that_may_not_be_imported(room: str) -> None:
    found = {str(file): parts_of_paths(file) & ABOVE[room] for file in (ROOT / room).rglob("*.py")}
    assert {file: parts for file, parts in found.items() if parts} == {}
