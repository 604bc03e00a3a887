"""The `kvsim` command: a table of commands, each loaded only when it is called.

A command is a module that has either `command` (a function with typer's annotations) or `app` (a `typer.Typer()` with
commands of its own). Satellites add theirs by the entry-point group `kvsim.commands` ("name = module:attribute").
This file turns every exception into an exit code: 0 done, 1 the answer is "no", 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvsim import __version__
from kvsim.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_COMMANDS = {
    "simulate": ("kvsim.commands.simulate", "Replay a trace under one cache policy"),
    "compare": ("kvsim.commands.compare", "The same trace under several policies, side by side"),
    "plan": ("kvsim.commands.plan", "How many GPUs, of which kind, at what cost, for your objectives"),
    "sweep": ("kvsim.commands.sweep", "Many scenarios over all cores or a Ray cluster, resumable"),
    "memory": ("kvsim.commands.memory", "Where the GPU's bytes go, without a simulation"),
    "trace": ("kvsim.commands.trace", "Look at, convert and make up request traces"),
    "list": ("kvsim.commands.list", "Models, devices, engines, policies … known by name"),
    "validate": ("kvsim.commands.validate", "How far off the predictions are, against true values"),
}

_SATELLITE_HELP = {
    "calibrate": "Measure this GPU or CPU, or import measurements, into a profile",
    "measure": "Replay a trace against a live server and record a Result",
    "accuracy": "What quantization and eviction cost in answer quality",
    "app": "Open the interactive app in a browser",
}

_USAGE = """\
{bold}kvsim{end}: what each KV-cache policy does to memory, fragmentation and latency,
for your model, GPU and traffic.

{bold}Usage:{end} kvsim COMMAND [OPTIONS]

{bold}Commands:{end}
{commands}

{bold}Options:{end}
  --help       This text; after a command: its options and an example
  --version    The version
  --debug      Show the traceback of an error

{bold}Example:{end}
  kvsim simulate --trace sample --model llama-3.1-8b --device h100-sxm
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(100_000, 20, 100)  # what imports and runs make stays: looking for cycles often costs a fifth
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    try:
        return _dispatch(args)
    except Exception as error:
        if debug:
            raise
        return _explain(error)
    except KeyboardInterrupt:
        return _interrupted()


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("--help", "-h", "help"):
        print(_overview(), flush=True)
        return 0
    if args[0] == "--version":
        print(f"kvsim {__version__}", flush=True)
        return 0
    name, rest = args[0], args[1:]
    result = _load(name)(args=rest, prog_name=f"kvsim {name}", standalone_mode=False)
    sys.stdout.flush()  # here, so that a closed pipe is seen and not printed by the interpreter's exit
    if result == 130:
        return _interrupted()
    return result if isinstance(result, int) else 0


def _load(name: str) -> Any:
    """The click command called `name`. Raises InputError with a "did you mean" otherwise."""
    return _as_paragraphs(_click(name))


def _as_paragraphs(command: Any) -> Any:
    """Its help, and its subcommands', without the source's line ends: rich would keep them, and wrap besides."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    for below in getattr(command, "commands", {}).values():
        _as_paragraphs(below)
    return command


def _click(name: str) -> Any:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # we have none, and looking for them costs 50 ms
    if name in _COMMANDS:
        import importlib

        module = importlib.import_module(_COMMANDS[name][0])
        plugin = getattr(module, "app", None) or module.command
    else:
        satellites = {point.name: point for point in _satellites()}
        if name not in satellites:
            from kvsim.registry import unknown

            raise unknown("command", name, [*_COMMANDS, *satellites])
        plugin = satellites[name].load()

    import typer

    if isinstance(plugin, typer.Typer):
        return typer.main.get_command(plugin)
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name, no_args_is_help=False)(plugin)
    return typer.main.get_command(app)


def _satellites() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group="kvsim.commands"), key=lambda point: point.name)


def _overview() -> str:
    rows = [(name, text) for name, (_, text) in _COMMANDS.items()]
    for point in _satellites():
        added_by = f"Added by {point.dist.name}" if point.dist else ""
        rows.append((point.name, _SATELLITE_HELP.get(point.name, added_by)))
    width = max(len(name) for name, _ in rows)
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return _USAGE.format(
        bold="" if plain else "\x1b[1m",
        end="" if plain else "\x1b[0m",
        commands="\n".join(f"  {name:<{width}}    {text}" for name, text in rows),
    ).rstrip()


def _explain(error: Exception) -> int:
    """One sentence on stderr for `error`, and the exit code."""
    if isinstance(error, BrokenPipeError):
        # The reader has gone (`| head`): not an error. Point stdout elsewhere, or the exit's flush fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # as click does
    if isinstance(error, InputError):
        return _fail(str(error), 2)
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        return _fail(f"{error.filename}: {said}" if error.filename else said, 2)
    if isinstance(error, MemoryError):
        return _fail(f"this machine has not the memory for it: {str(error) or 'ask for less'}", 2)
    if hasattr(error, "format_message"):  # click's usage errors, wherever typer keeps click
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return 2
        context = getattr(error, "ctx", None)
        see = f" (see {context.command_path} --help)" if context else ""
        return _fail(f"{error.format_message().rstrip('.')}{see}", 2)
    if type(error).__name__ == "Abort":
        return _interrupted()
    return _fail(f"a bug in kvsim, {type(error).__name__}: {error} (--debug shows where; please report it)", 70)


def _fail(sentence: str, code: int) -> int:
    print(f"kvsim: {sentence}", file=sys.stderr)
    return code


def _interrupted() -> int:
    return _fail("interrupted", 130)
