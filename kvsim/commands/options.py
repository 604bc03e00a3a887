"""One flag for every field of Scenario, so that names, help and defaults are written once."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from kvsim.scenario import Scenario, fields, flag


@dataclass(frozen=True)
class Build:
    """Makes the scenario from what was given on the command line, and from keywords for fields that the command
    decides; raises InputError."""

    flags: Mapping[str, Any]
    """by field; None: not given"""
    file: Path | None
    sets: Sequence[str]

    def __call__(self, **more: Any) -> Scenario:
        return Scenario.build({**self.flags, **more}, self.file, self.sets)

    @property
    def given(self) -> list[str]:
        """Options that were given, as they are written."""
        named = {flag(name): value for name, value in self.flags.items()}
        named |= {"--scenario": self.file, "--set": self.sets}
        return [option for option, value in named.items() if value not in (None, ())]


_FILE = Annotated[
    Path | None,
    typer.Option("--scenario", metavar="FILE", help="TOML file with the same keys", rich_help_panel="What"),
]
_SET = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated", rich_help_panel="What"),
]


def with_scenario(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator for a command `f(build, …)`: adds a flag per Scenario field but those in `leave_out`.

    The flags, `--scenario` and `--set` become `build: Build`, called when the command wants the scenario.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "build"]
        shown = {name: field for name, field in fields().items() if name not in leave_out}

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            file, sets = given.pop("scenario_file"), given.pop("sets")
            flags = {name: given.pop(name) for name in shown}
            command(build=Build(flags, file, tuple(sets or ())), **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(n, keyword, default=None, annotation=_option(n, f)) for n, f in shown.items()]
        parameters += [
            inspect.Parameter("scenario_file", keyword, default=None, annotation=_FILE),
            inspect.Parameter("sets", keyword, default=None, annotation=_SET),
            *(p.replace(kind=keyword) for p in own),
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        del wrapper.__wrapped__
        return wrapper

    return decorate


def _option(name: str, field: FieldInfo) -> Any:
    """The typer annotation of one field. Values stay strings here: Scenario checks them and names the flag."""
    extra: Any = field.json_schema_extra
    default = extra["default"] or (None if field.is_required() or field.default is None else str(field.default))
    help = (field.description or "") + (rf" \[default: {default}]" if default else "")
    kinds = _plain_types(field.annotation)
    if bool in kinds:
        spelling = f"{flag(name)}/--no-{flag(name)[2:]}"
        return Annotated[bool | None, typer.Option(spelling, help=field.description, rich_help_panel=extra["panel"])]
    metavar = extra["value"] or ("N" if int in kinds else "X" if float in kinds else "NAME")
    return Annotated[str | None, typer.Option(flag(name), metavar=metavar, help=help, rich_help_panel=extra["panel"])]


def _plain_types(annotation: Any) -> set[Any]:
    """The types in `Annotated[int, …] | None`: {int, NoneType}."""
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*(_plain_types(arg) for arg in get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return _plain_types(get_args(annotation)[0])
    return {annotation}
