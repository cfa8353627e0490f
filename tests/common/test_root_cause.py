"""The reason in a traceback is the error's own message, whatever its last line is."""

import traceback
from collections.abc import Callable

import pytest
from pydantic import BaseModel, Field, model_validator

from hora_rl.common.errors import DIED, RunError, root_cause


class Model(BaseModel):
    dtype: int = 1
    share: float = Field(0.5, gt=0)

    @model_validator(mode="after")
    def known(self) -> "Model":
        if self.dtype == 7:
            raise ValueError("type 7 is not supported [yet].\nSee the list")
        return self


def a_chain() -> None:
    try:
        open("/nonexistent/config.json").close()
    except OSError as error:
        raise RuntimeError("Engine core initialization failed.\nSee root cause above.") from error


def a_failed_clean_up() -> None:
    try:
        open("/nonexistent/config.json").close()
    finally:
        None.shutdown()  # type: ignore[attr-defined]


def our_own() -> None:
    try:
        a_chain()
    except RuntimeError as error:
        raise RunError("model.path: no such folder") from error


def our_own_that_was_wrapped() -> None:
    try:
        our_own()
    except RunError as error:
        raise RuntimeError("a replica failed") from error


def raises(error: Exception) -> object:
    raise error


CASES: list[tuple[Callable[[], object], tuple[str, ...]]] = [
    (lambda: Model(dtype=7), ("Model: type 7 is not supported [yet]. See the list",)),
    (
        lambda: Model(dtype="x", share=-1),  # type: ignore[arg-type]
        ("dtype: Input should be a valid integer", "; share: Input should be greater than 0"),
    ),
    (a_chain, ("FileNotFoundError: [Errno 2]", "/nonexistent/config.json", "Engine core initialization")),
    (a_failed_clean_up, ("FileNotFoundError: [Errno 2]", "'NoneType' object has no attribute 'shutdown'")),
    (our_own, ("model.path: no such folder",)),
    (our_own_that_was_wrapped, ("model.path: no such folder",)),
    (lambda: {}["rope"], ("KeyError: 'rope'",)),
    (
        lambda: raises(ValueError("too small:\n  2 GiB\n  1 free")),
        ("ValueError: too small: 2 GiB 1 free",),
    ),
    (lambda: raises(AssertionError()), ("AssertionError",)),
    (lambda: exec("x = = 1"), ("SyntaxError: invalid syntax",)),
    (
        lambda: raises(ExceptionGroup("two", [ValueError("one fault"), KeyError("other")])),
        ("ValueError: one fault", "KeyError: 'other'"),
    ),
]


@pytest.mark.parametrize(("fails", "words"), CASES)
def test_what_went_wrong_is_said_in_one_line(fails: Callable[[], object], words: tuple[str, ...]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fails()
    trace = "".join(traceback.format_exception(caught.value))
    # As Serve reports it: the replica raises the text of a traceback, and Ray adds its own.
    text = (
        "The deployment failed to start 3 times in a row. Error:\n\x1b[36mray::Replica()\x1b[39m (pid=1)\n"
        f'  File "replica.py", line 1, in initialize\n    raise RuntimeError(x)\nRuntimeError: {trace}\n\n'
    )
    for found in (root_cause(trace), root_cause(text)):
        assert all(word in found for word in words), found
        assert not any(word in found for word in ("\n", 'File "', "Traceback", "pydantic", "hora_rl"))


def test_without_a_traceback_there_is_still_a_reason() -> None:
    assert root_cause("Error:\nno resources\n") == "no resources"
    assert "process ended" in root_cause(f"The deployment failed. Error:\n{DIED}")
