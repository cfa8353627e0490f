"""Environments by name."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hora_rl.actors.environment.built_in import guess, python_tool
from hora_rl.actors.environment.protocol import EpisodeFunction
from hora_rl.actors.environment.verifiers_bridge.process import VerifiersEnvironment
from hora_rl.common.config import EnvironmentConfig
from hora_rl.common.config.environment import BUILT_IN, LIBRARY
from hora_rl.common.errors import ConfigError
from hora_rl.common.user_code import load_function

OWN = dict(zip(BUILT_IN, (guess, python_tool), strict=True))


@asynccontextmanager
async def environment_of(environment: EnvironmentConfig, run: str) -> AsyncIterator[EpisodeFunction]:
    """The configured environment, ready for use inside the block. Raises ConfigError if it cannot be
    loaded."""
    name = environment.path or ""
    if name != LIBRARY:
        yield load_environment(name)
        return
    library = VerifiersEnvironment(environment.verifiers, run)
    try:
        await library.start()
        yield library.episode
    finally:
        await library.close()


def load_environment(name: str) -> EpisodeFunction:
    """The built-in or user-defined environment of this name. Raises ConfigError if it cannot be loaded."""
    if name in OWN:
        return OWN[name]
    function = load_function("environment.path", name, f"{', '.join((*OWN, LIBRARY))} or ")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"environment.path: {name!r} is no `async def`")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        raise ConfigError(
            f"environment.path: {name!r} must take three arguments: row, policy, sandbox"
        ) from None
    return function
