"""Algorithms of the objective by name, one file each: the name is the file's, and `ALGORITHM` tells the rest.
A user's is such a file elsewhere, as `package.module:NAME` of an `Algorithm` or of a function."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hora_rl.common.algorithms.base import Algorithm
from hora_rl.common.algorithms.shrunken import with_numbers
from hora_rl.common.errors import ConfigError
from hora_rl.common.user_code import is_user_function, load_function, load_object, working_folder

ALGORITHMS: dict[str, Algorithm] = {
    module.name: import_module(f"{__name__}.{module.name}").ALGORITHM
    for module in iter_modules(__path__)
    if module.name != "base"
}
ADVANTAGES = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.advantage)
LOSSES = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.token_loss)


def advantage_of(name: str) -> Algorithm:
    """The algorithm of an advantage: a built-in one, with its numbers, or a user's. Raises ValueError."""
    if is_user_function(name):
        return _users("advantage", name)
    base, parenthesis, numbers = name.partition("(")
    if base == "shrunken":
        try:
            return with_numbers(numbers.removesuffix(")"))
        except ValueError as error:
            raise ValueError(f"{name!r} {error}") from None
    if parenthesis or base not in ADVANTAGES:
        raise ValueError(f"{name!r} is none of {', '.join(ADVANTAGES)}")
    return ALGORITHMS[base]


def loss_of(name: str) -> Algorithm:
    """The algorithm of a token loss: a built-in one or a user's. Raises ValueError."""
    if is_user_function(name):
        return _users("loss", name)
    if name not in LOSSES:
        raise ValueError(f"{name!r} is none of {', '.join(LOSSES)}")
    return ALGORITHMS[name]


@cache  # asked for every group
def _users(part: str, name: str) -> Algorithm:
    """The user's algorithm `name`; a function is its advantage of (rewards, successes, phases), or its token
    loss. Raises ConfigError."""
    key = f"learner.objective.{part}"
    with working_folder():
        algorithm = load_object(key, name)
    if not isinstance(algorithm, Algorithm):
        function = load_function(key, name)
        return Algorithm(user_advantage=function) if part == "advantage" else Algorithm(token_loss=function)
    if part == "loss" and algorithm.token_loss is None:
        raise ConfigError(f"{key} ({name}): this Algorithm has no token_loss")
    if part == "advantage" and algorithm.advantage is algorithm.user_advantage is None:
        raise ConfigError(f"{key} ({name}): this Algorithm has no advantage")
    return algorithm
