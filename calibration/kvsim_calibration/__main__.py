"""`python -m kvsim_calibration …` is `kvsim calibrate …` where kvsim is not installed, as `make gpu` finds it."""

from __future__ import annotations

import sys

import typer

from kvsim.errors import InputError
from kvsim_calibration.cli import app


def main(arguments: list[str]) -> int:
    """Exit code of one command line."""
    try:
        result = typer.main.get_command(app)(args=arguments, prog_name="kvsim calibrate", standalone_mode=False)
    except InputError as error:
        print(f"kvsim: {error}", file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
