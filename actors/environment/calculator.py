"""A calculator: the policy writes `<calc>12 * (3 + 4)</calc>` in a turn and reads the value in the next
message. The last turn is the answer; rewards judge it like a completion."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from hora_rl.actors.environment.between import between
from hora_rl.actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from hora_rl.common.data.datasets import Row

BEGIN, END = "<calc>", "</calc>"
LONGEST = 200
"""Maximum characters of an expression and of a value."""
MOST_BITS = 512
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


async def calculator(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One problem. `calls` is the number of calculator calls."""
    calls = 0
    try:
        said = await policy.generate()
        while (expression := between(said.text, BEGIN, END)) is not None:
            calls += 1
            said = await policy.generate({"role": "user", "content": evaluate(expression)})
    except EpisodeOver:
        pass  # the last turn is the answer
    return Episode({"calls": float(calls)})


def evaluate(expression: str) -> str:
    """The exact value of an expression of numbers, + - * / and brackets as text, or an error message."""
    if len(expression) > LONGEST:
        return f"error: longer than {LONGEST} characters"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error: write numbers, + - * / and brackets"
    return str(value)[:LONGEST]


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = Fraction(str(node.value))
    else:
        raise ValueError(ast.dump(node)[:80])
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ValueError("too large")
    return value
