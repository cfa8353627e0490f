"""The folders at the top are packages of `hora_rl`: `common/` is `hora_rl.common`. pyproject.toml has the
rest."""

from setuptools import find_packages, setup

ROOMS = ("actors", "allocator", "common", "deploy", "evaluation", "learner")
INSIDE = find_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)])

setup(
    packages=["hora_rl", *(f"hora_rl.{name}" for name in INSIDE)],
    package_dir={f"hora_rl.{room}": room for room in ROOMS},
)
