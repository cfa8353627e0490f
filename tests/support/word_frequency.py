"""Count words that docstrings here use more often than those of comparable projects.

Run from the repository root: `python -m tests.support.word_frequency [--files COUNT] [FOLDER ...]`.
"""

import argparse
import ast
import re
from collections import Counter
from pathlib import Path

ROOMS = ("allocator", "actors", "common", "deploy", "evaluation", "learner", "hora_rl", "research")
# Uses per 10,000 words in the docstrings of prime-rl, tinker-cookbook, TRL and Acme together, where measured.
ANCHORS: dict[str, float | None] = {
    "what": 3.5,
    "it": 31,
    "whole": 1.6,
    "alone": 0.5,
    "says": 0.2,
    "nobody": 0,
    "own": 3.8,
} | dict.fromkeys(("which", "such", "whose", "there", "both", "every", "others", "beside"))


def docstring_words(path: Path) -> Counter[str]:
    """Lower-case words in the docstrings of one Python file, with their counts."""
    words: Counter[str] = Counter()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words.update(re.findall(r"[a-z]+(?:'[a-z]+)?", (ast.get_docstring(node) or "").lower()))
    return words


def main() -> None:
    """Print the table and, with --files, the files with the most listed words that have an anchor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=ROOMS)
    parser.add_argument("--files", type=int, default=0, metavar="COUNT")
    arguments = parser.parse_args()
    paths = sorted(path for folder in arguments.folders for path in Path(folder).rglob("*.py"))
    by_file = {path: docstring_words(path) for path in paths}
    totals = sum(by_file.values(), Counter[str]())
    size = max(totals.total(), 1)
    print(f"{size} words in the docstrings of {len(paths)} files; uses per 10,000\n")
    print(f"{'word':<10}{'here':>8}{'anchors':>10}")
    for word, anchor in ANCHORS.items():
        print(f"{word:<10}{10_000 * totals[word] / size:>8.1f}{'-' if anchor is None else anchor:>10}")
    measured = [word for word, anchor in ANCHORS.items() if anchor is not None]
    hits = {path: sum(words[word] for word in measured) for path, words in by_file.items()}
    for path in sorted(paths, key=lambda path: -hits[path])[: arguments.files]:
        print(f"{hits[path]:>5} of {by_file[path].total():>5}  {path}")


if __name__ == "__main__":
    main()
