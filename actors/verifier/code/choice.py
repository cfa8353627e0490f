"""Which code blocks of a completion are the program. Runs in the sandbox, because parsing hostile text may
take any time or end the interpreter: standard library only, Python 3.9 or later. It executes no block.

With assertions or calls, the program is the last block that defines most of what the tests call. With pairs
of stdin and stdout it is the last one that does something by itself: it needs no name that only another block
defines. One that writes and one that reads come before others. Earlier blocks that define names it lacks go
before it: a helper in a separate block."""

from __future__ import annotations

import ast
import builtins
import json
import sys
import warnings
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
READS, WRITES = ("input", "stdin", "fileinput"), ("print", "stdout", "write")


def main() -> None:
    """Read `[blocks, entry, asserts, whether tests are pairs]`, write the numbers of the program's blocks."""
    warnings.simplefilter("ignore")  # of hostile texts: invalid escapes
    blocks, entry, asserts, pairs = json.load(sys.stdin)
    trees = [_parsed(block) for block in blocks]
    worth = _standalone(trees) if pairs else _defining(trees, _wanted(entry, asserts))
    best = max(range(len(blocks)), key=lambda number: (worth[number], number))
    sys.stdout.write(json.dumps(_with_helpers(trees, best)))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_helpers(trees: list, best: int) -> list[int]:
    """The block `best`, and before it those above that only define, and define names it lacks."""
    chosen, lacking = [best], _free(trees[best]) if trees[best] is not None else set()
    for number in reversed(range(best)):
        tree = trees[number]
        defined = {*_defined(tree), *_imported(tree)} if tree is not None else set()
        if lacking & defined and all(isinstance(node, DEFINITIONS) for node in tree.body):
            chosen.insert(0, number)
            lacking = (lacking - defined) | _free(tree)
    return chosen


def _imported(tree: ast.AST) -> set[str]:
    aliases = [node for node in ast.walk(tree) if isinstance(node, ast.alias)]
    return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}


def _wanted(entry: str, asserts: str) -> set[str]:
    """Names that the tests expect of the program; empty if they name none."""
    owner, _, method = entry.rpartition("().")
    names = {owner or method} - {""}
    if entry or not asserts:
        return names
    return _free(ast.parse(asserts))


def _defining(trees: list, wanted: set[str]) -> list[tuple[int, int, int]]:
    """For each block the number of wanted names that it defines, and of those with a body. A block that
    returns comes before others: it may be the body alone."""
    counts = []
    for tree in trees:
        defined = _defined(tree) if tree is not None else {}
        named = [has_body for name, has_body in defined.items() if name in wanted]
        if not wanted:
            named = [any(defined.values())] if defined else []
        returns = tree is not None and any(isinstance(node, ast.Return) for node in ast.walk(tree))
        counts.append((len(named), sum(named), int(returns)))
    return counts


def _defined(tree: ast.Module) -> dict[str, bool]:
    """The functions, classes and names of a block, methods of `Solution` too, and whether they have a body.
    An import defines nothing: an example imports the program."""
    names: dict[str, bool] = {}
    for node in tree.body:
        if isinstance(node, FUNCTIONS):
            names[node.name] = _has_body(node)
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, FUNCTIONS)]
            has_body = any(map(_has_body, methods)) if methods else True
            names[node.name] = has_body
            if node.name == "Solution":
                names.update({method.name: _has_body(method) for method in methods})
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update({target.id: True for target in targets if isinstance(target, ast.Name)})
    return names


def _has_body(function: Any) -> bool:
    """Whether it is more than a docstring, `pass` or `...`."""
    statements = [n.value if isinstance(n, ast.Expr) else n for n in function.body]
    return not all(isinstance(n, (ast.Pass, ast.Constant)) for n in statements)


def _standalone(trees: list) -> list[tuple[bool, bool, bool, bool]]:
    """For each block: does it act, without names of other blocks, and does it write and read."""
    bound = [set() if tree is None else _bound(tree) for tree in trees]
    marks = []
    for number, tree in enumerate(trees):
        others = set().union(*(names for other, names in enumerate(bound) if other != number))
        acts = tree is not None and any(isinstance(node, ast.Call) for node in ast.walk(tree))
        alone = acts and not (_free(tree) & others)
        names = _mentioned(tree) if alone else set()
        marks.append((acts, alone, bool(names.intersection(WRITES)), bool(names.intersection(READS))))
    return marks


def _free(tree: ast.Module) -> set[str]:
    """Names that a text uses and does not bind."""
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return {name for name in used - _bound(tree) if not hasattr(builtins, name)}


def _bound(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    named = [n for n in nodes if isinstance(n, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler))]
    bound |= {n.name for n in named if n.name}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return bound | _imported(tree)


def _mentioned(tree: ast.Module) -> set[str]:
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    opened = [a for n in calls if isinstance(n.func, ast.Name) and n.func.id == "open" for a in n.args[:1]]
    reads = any(isinstance(n, ast.Constant) and n.value in (0, "/dev/stdin") for n in opened)
    return names | ({"stdin"} if reads else set())
