"""Generate docs/reference/commands.md from the command line itself (`make reference`)."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from hora_rl.deploy.cli import app

Parameter = typer.core.TyperArgument | typer.core.TyperOption

HEAD = """# Commands

Every command prints its options with `--help`, and `hora --version` the version. A mistake that you can
correct is one line on standard error, with exit status 1. A command that Ctrl-C or a signal stopped exits
with 130. CONFIG is a YAML file, a Serve file, or the name of a preset in `deploy/presets/`. RUN is the
folder of a run. Generated from `deploy/cli.py`.
"""


def document() -> str:
    """The page, with the commands in the order of `hora --help`."""
    return HEAD + "".join(_section(name, command) for name, command in commands())


def commands() -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Every command with its full name, such as "hora run"."""
    root = typer.main.get_command(app)
    assert isinstance(root, typer.core.TyperGroup)
    for name, command in root.commands.items():
        assert isinstance(command, typer.core.TyperCommand)
        yield f"hora {name}", command


def _section(name: str, command: typer.core.TyperCommand) -> str:
    parameters = [p for p in command.params if isinstance(p, Parameter)]
    given = [p for p in parameters if isinstance(p, typer.core.TyperArgument)]
    usage = " ".join([name, *(_argument(p) for p in given), "[OPTIONS]"])
    rows = [f"| `{_label(p)}` | {_default(p)} | {_meaning(p)} |\n" for p in parameters]
    text = " ".join((command.help or "").split())
    return "".join(
        [f"\n## {name}\n\n{text}\n\n    {usage}\n\n| option | default | meaning |\n|---|---|---|\n", *rows]
    )


def _argument(parameter: Parameter) -> str:
    name = (parameter.name or "").upper()
    return f"{name}…" if parameter.nargs == -1 else name


def _label(parameter: Parameter) -> str:
    if isinstance(parameter, typer.core.TyperArgument):
        return _argument(parameter)
    others = [o for o in parameter.secondary_opts if not o.startswith("--no-")]
    return ", ".join([*parameter.opts, *others])


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    shown = parameter.default not in (None, "") and parameter.default is not False
    return f"`{parameter.default}`" if shown else ""


def _meaning(parameter: Parameter) -> str:
    return (parameter.help or "").replace("|", "\\|")


if __name__ == "__main__":
    print(document(), end="")
