"""The process of the tests, in the sandbox. It never executes code of the program.

Names that the tests use but do not define refer to the program. Calls are sent to the program's process by
value, and results are rebuilt here from built-in types. So an `os._exit`, an `__eq__` that is always true or
a printed "pass" cannot affect an assertion. The verdict goes to stdout of this process.

The verdict is `cannot` for functions as arguments, tests that call nothing, `isinstance` with the program's
classes, and imports outside the standard library.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
from typing import Any

from hora_rl.actors.verifier.code import values

ASK, TELL = 3, 4


class Unanswered(BaseException):
    """The program exited or sent an invalid reply. A BaseException, so that tests cannot catch it."""


class Unjudgeable(BaseException):
    """The tests use something that is not supported."""


class Program:
    """The program's process, reached through pipes. `calls` counts the calls so far."""

    def __init__(self) -> None:
        self._ask, self._tell = os.fdopen(ASK, "wb", buffering=0), os.fdopen(TELL, "rb")
        self.calls = 0

    def send(self, message: Any) -> None:
        data = values.line(message)
        try:
            while data:
                data = data[self._ask.write(data) or 0 :]
        except OSError:
            raise Unanswered("the program has ended") from None

    def ask(self, what: str, target: Any, name: str | None, arguments: tuple, keywords: dict) -> Any:
        self.calls += 1
        try:
            sent = [values.encode(argument, _number) for argument in arguments]
            named = {k: values.encode(v, _number) for k, v in keywords.items()}
        except values.Unsendable as error:
            if isinstance(error, values.TooDeep) and self.calls > 1:  # a result of the program, passed back
                raise Unanswered(f"{error}") from None
            raise Unjudgeable(f"{error} to the program") from None
        self.send([self.calls, what, target, name, sent, named])
        kind, value, rest = self._reply()
        if kind == "error":
            raise _error(value, rest)
        try:
            for ours, theirs in zip(arguments, rest):  # noqa: B905  (Python 3.9 knows no `strict`)
                _changed_in_place(ours, values.decode(theirs, self.object))
            return values.decode(value, self.object)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise Unanswered(f"an answer that is no value: {error}") from None

    def object(self, number: int) -> Remote:
        return Remote(self, number)

    def _reply(self) -> tuple[str, Any, Any]:
        reply = self._tell.readline(values.LONGEST)
        try:
            number, kind, value, rest = json.loads(reply)
        except (RecursionError, TypeError, ValueError):
            raise Unanswered("the program ended, or answered too much") from None
        if number != self.calls or kind not in ("value", "error"):
            raise Unanswered("an answer that was not asked for")
        return kind, value, rest


class Remote:
    """A name defined by the program, or an object returned by it."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, program: Program, target: Any) -> None:
        self.__dict__.update(_program=program, _target=target)  # `__setattr__` is the program's

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._program.ask("call", self._target, None, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask("get", self._target, name, (), {})

    def __eq__(self, other: object) -> bool:
        raise TypeError("an object of the program cannot be compared")

    def __instancecheck__(self, instance: object) -> bool:
        raise Unjudgeable("the tests ask for an object of the program's own class")


def _forwarded(name: str) -> Any:
    def method(self: Remote, *arguments: Any) -> Any:
        return self._program.ask("call", self._target, name, arguments, {})

    return method


for _name in values.OPERATIONS:
    setattr(Remote, _name, _forwarded(_name))


class Names(dict):
    """The namespace of the tests. A name that neither the tests nor Python define refers to the program."""

    def __init__(self, program: Program) -> None:
        super().__init__(__name__="tests")
        self._program = program

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):  # a program could define its own `all` that is always true
            raise KeyError(name)
        return Remote(self._program, name)


def main() -> None:
    """Read a task from stdin and write `[nonce, verdict, reason]`. The verdict is pass, wrong or cannot."""
    task = json.loads(sys.stdin.buffer.read())
    sys.stdout = sys.stderr  # only the verdict goes to stdout
    program = Program()
    try:
        program.send([task["program"], task["before"], task["entry"]])
        if task["calls"]:
            verdict, reason = _called(program, task["calls"], task["entry"])
        else:
            verdict, reason = _verdict(program, task["tests"], task["entry"])
    except Unanswered as error:
        verdict, reason = "wrong", str(error)
    os.write(1, json.dumps([task["nonce"], verdict, reason[:300]]).encode())


def _called(program: Program, calls: list, entry: str) -> tuple[str, str]:
    """Verdict for `calls`, each the arguments and the right results."""
    for number, (arguments, results) in enumerate(calls, start=1):
        with values.Caught() as caught:
            value = values.as_json(Remote(program, entry)(*arguments))
            if not any(value == result for result in results):
                return "wrong", f"test {number}: wrong result"
        if caught.error is not None:
            return "wrong", f"test {number}: {type(caught.error).__name__}: {caught.error}"
    return "pass", ""


def _verdict(program: Program, tests: str, entry: str) -> tuple[str, str]:
    try:
        code, tree = compile(tests, "tests.py", "exec"), ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        return "cannot", f"{type(error).__name__}: {error}"
    if name := _of_program(tree):
        return "cannot", f"the tests ask for an object of the program's own class ({name})"
    try:
        with values.Caught() as caught:
            _run(program, code, entry)
    except Unjudgeable as error:
        return "cannot", str(error)
    except (SystemExit, KeyboardInterrupt) as error:
        return "cannot", f"the tests end by {type(error).__name__}"
    if caught.error is not None:
        return _failed(caught.error, program.calls, tree)
    return ("pass", "") if program.calls else ("cannot", "the tests call nothing that the program defines")


def _failed(error: Exception, calls: int, tests: ast.Module) -> tuple[str, str]:
    """Verdict for `tests` that raised `error` after `calls` calls of the program. A wrong answer may cause
    any exception. The tests are at fault if they called nothing yet or fail to import a module."""
    if isinstance(error, AssertionError):
        return "wrong", f"assertion {error}"
    # Errors of the program are marked: see `_error`.
    of_tests = isinstance(error, (ImportError, SyntaxError)) and not getattr(error, "of_program", False)
    if calls:  # `ast.literal_eval(answer)` raises SyntaxError too
        of_tests = of_tests and isinstance(error, ImportError) and _imports(tests, str(error.name))
    return ("cannot" if of_tests else "wrong"), f"{type(error).__name__}: {error}"


def _imports(tests: ast.Module, module: str) -> bool:
    """Whether the tests import `module` or a module inside it."""
    modules = [alias.name for n in ast.walk(tests) if isinstance(n, ast.Import) for alias in n.names]
    modules += [n.module or "" for n in ast.walk(tests) if isinstance(n, ast.ImportFrom)]
    return any(f"{name}.".startswith(f"{module}.") for name in modules)


def _of_program(tests: ast.Module) -> str:
    """A class in an `isinstance` call of the tests that only the program can define, or "". Found before the
    tests run, so that the verdict does not depend on an answer."""
    nodes = list(ast.walk(tests))
    aliases = [n for n in nodes if isinstance(n, ast.alias)]
    if any(alias.name == "*" for alias in aliases):
        return ""
    known = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    known |= {n.name for n in nodes if isinstance(n, (ast.ClassDef, ast.ExceptHandler)) and n.name}
    known |= {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    known |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    classes = [
        item
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "isinstance"
        for second in n.args[1:2]
        for item in (second.elts if isinstance(second, ast.Tuple) else [second])
    ]
    names = [n.id for n in classes if isinstance(n, ast.Name)]
    return next((name for name in names if name not in known and not hasattr(builtins, name)), "")


def _run(program: Program, code: Any, entry: str) -> None:
    names = Names(program)
    if entry:
        names["candidate"] = Remote(program, entry)
    exec(code, names)
    if entry and "check" in names:
        names["check"](names["candidate"])


def _number(value: Any) -> int:
    """The number of a program's object that is an argument."""
    if isinstance(value, Remote) and isinstance(value._target, int):
        return value._target
    raise values.Unsendable(f"a {type(value).__name__} cannot be passed")


def _error(name: Any, text: Any) -> Exception:
    """The program's exception as the built-in one of that name, else RuntimeError. Never AssertionError: only
    tests may raise that."""
    known = getattr(builtins, str(name), None)
    plain = isinstance(known, type) and issubclass(known, Exception) and known is not AssertionError
    kind: Any = known if plain else RuntimeError
    error = kind.__new__(kind)  # some built-in exceptions require five arguments
    error.args = (str(text),)
    error.of_program = True
    return error  # type: ignore[no-any-return]


def _changed_in_place(ours: Any, theirs: Any) -> None:
    if type(ours) is list and type(theirs) is list:
        ours[:] = theirs
    elif type(ours) in (dict, set) and type(theirs) is type(ours):
        ours.clear()
        ours.update(theirs)
