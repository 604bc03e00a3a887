"""`python -m kvsim_kernels check | resources | instructions | bench | gpu`."""

from __future__ import annotations

import argparse
import importlib
import sys

COMMANDS = {
    "check": "run every kernel and compare with float64",
    "resources": "compile every kernel for every chip; registers, shared memory, spills",
    "instructions": "count the instructions of the decode loop, for each token",
    "bench": "time every kernel against its ceiling (needs a GPU)",
    "gpu": "all of that on this GPU: compile, check, time (what `make gpu` runs)",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command: a module of `commands` with `options(parser)` and `run(asked) -> exit code`."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m kvsim_kernels", description=__doc__)
    chosen = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        one = chosen.add_parser(name, help=text, description=text)
        if name in given[:1]:
            importlib.import_module(f"kvsim_kernels.commands.{name}").options(one)
    asked = parser.parse_args(given)
    try:
        return int(importlib.import_module(f"kvsim_kernels.commands.{asked.command}").run(asked))
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        from .speed.attempt import AGAIN, Again

        if not isinstance(error, Again):
            raise
        print(error, file=sys.stderr)
        return AGAIN


if __name__ == "__main__":
    sys.exit(main())
