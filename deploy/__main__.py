"""Entry point of `hora`: one line if the packages of the system are not installed."""

import sys


def main() -> None:
    """Run the command line. Exit with 1 and the remedy if a required package is missing."""
    try:
        from hora_rl.deploy.cli import main as run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hora_rl":
            raise
        sys.exit(
            f"hora: the package {error.name} is not installed: `hora` needs the whole system. Run `make "
            "setup` in a checkout, or pip install 'hora-rl[cpu]' ('hora-rl[gpu]' with NVIDIA GPUs). The "
            "library alone needs no more than this: from hora_rl import allocate"
        )


if __name__ == "__main__":
    main()
