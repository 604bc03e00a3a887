"""`kvsim trace`: look at, convert and make up request traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.commands.output import show, show_json
from kvsim.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from kvsim.trace.types import Trace

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    help="Look at, convert and make up request traces.\n\nExample: kvsim trace info sample",
)

_Source = Annotated[
    str, typer.Argument(metavar="TRACE", help="A file, folder or tar of any known format, 'sample', or synth:PRESET")
]
_Out = Annotated[Path, typer.Argument(metavar="OUT", help="Where to write: .csv or .jsonl, with .gz compressed")]
_Format = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="The trace's format", show_default="found by content")
]
_Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="PROCESS",
        help="When requests begin, instead of the file's times: "
        "poisson:RATE, gamma:RATE:CV, onoff:RATE:ON_S:OFF_S, constant:RATE or at-once",
    ),
]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of what is drawn")]
_BlockSize = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="Tokens a block, where ids are made from token ids")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")]


@app.command()
def info(
    trace: _Source,
    format: _Format = None,
    arrivals: _Arrivals = None,
    seed: _Seed = 0,
    block_size: _BlockSize = None,
    as_json: _Json = False,
) -> None:
    """What a trace is like: rates, lengths, and how much of its prompts repeats.

    Traces without times are described as if all came at once.

    Example: kvsim trace info mooncake_conversation.jsonl.gz --json
    """
    from kvsim.trace import load
    from kvsim.trace.stats import describe

    found = load(trace, format=format, arrivals=arrivals, untimed="at-once", seed=seed, block_size=block_size)
    facts = describe(found)
    if as_json:
        show_json(facts)
    else:
        show(_table(found, facts))


@app.command()
def convert(
    trace: _Source,
    out: _Out,
    format: _Format = None,
    arrivals: _Arrivals = None,
    seed: _Seed = 0,
    block_size: _BlockSize = None,
    rate_scale: Annotated[float | None, typer.Option(metavar="X", help="X times the rate; think times stay")] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="This mean rate, in requests per second")] = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Cut what comes before, such as 10min")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Keep this long, such as 5min")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N requests")] = None,
    repeat: Annotated[int, typer.Option(metavar="N", help="N times, by new people each time")] = 1,
    scale_lengths: Annotated[float | None, typer.Option(metavar="X", help="Everything X times as long")] = None,
    as_json: _Json = False,
) -> None:
    """Write a trace in kvsim's own format, cut, sped up or repeated; in the order of the options below.

    Example: kvsim trace convert azure_2023_conv.csv.gz ten-minutes.csv.gz --duration 10min --rate 2
    """
    from kvsim.trace import load, transform
    from kvsim.units import parse_duration_ns

    if rate is not None and rate_scale is not None:
        raise InputError("--rate and --rate-scale both set the rate: give one of them")
    found = load(trace, format=format, arrivals=arrivals, seed=seed, block_size=block_size)
    if rate_scale is not None:
        found = transform.scale_rate(found, rate_scale)
    if rate is not None:
        found = transform.set_rate(found, rate)
    if start is not None or duration is not None:
        begin = parse_duration_ns(start) if start else 0
        found = transform.slice_time(found, begin, begin + parse_duration_ns(duration) if duration else None)
    if limit is not None:
        found = transform.limit(found, limit)
    found = transform.repeat(found, repeat)
    if scale_lengths is not None:
        found = transform.scale_lengths(found, scale_lengths)
    _write(found, out, as_json)


@app.command()
def synth(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="azure-chat, azure-code, mooncake-chat, sharegpt or chat")
    ],
    out: _Out,
    requests: Annotated[int | None, typer.Option(metavar="N", help="How many requests", show_default="1000")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Or for how long, such as 1h")] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="Mean requests per second")] = None,
    seed: _Seed = 0,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other field: arrivals, prompt, output, turns, think_s, …"),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Make up a trace: seeded arrivals and lengths, shared system prompts, conversations that wait for their answers.

    The same without a file, wherever a trace is accepted: synth:PRESET?rate=2&requests=1000

    Example: kvsim trace synth sharegpt busy.csv.gz --rate 4 --duration 10min --set system_tokens=500
    """
    from kvsim.trace.synth import from_text

    said = {"seed": str(seed)}
    for key, value in (("requests", requests), ("duration", duration), ("rate", rate)):
        if value is not None:
            said[key] = str(value)
    for option in options or ():
        key, equals, text = option.partition("=")
        if not equals or not text:
            raise InputError(f"--set {option!r} is not understood: write KEY=VALUE, such as turns=3")
        said[key] = text
    _write(from_text(preset, said), out, as_json)


def _write(trace: Trace, out: Path, as_json: bool) -> None:
    """Write the trace and say what it is like."""
    from kvsim.trace.stats import describe
    from kvsim.trace.write import write

    write(trace, out)
    facts = describe(trace)
    if as_json:
        show_json(facts)
    else:
        show(_table(trace, facts))


def _table(trace: Trace, facts: dict[str, Any]) -> Table:
    """The facts of `describe` for a person, with what the reader did to the file."""
    from rich.table import Table

    from kvsim.trace.stats import reusable_share
    from kvsim.units import format_duration

    table = Table(title=f"[bold]{trace.name}[/] · {facts['format']}", show_header=False, box=None, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("requests", f"{facts['rows']:,}")
    for reason, count in facts["dropped"].items():
        table.add_row("dropped", f"{count:,} ({reason})")
    sessions = len({*trace.session.tolist()} - {-1})
    if sessions:
        waiting = int((trace.parent >= 0).sum())
        table.add_row("conversations", f"{sessions:,}; {waiting:,} requests wait for an answer before them")
    if facts["duration_s"]:
        table.add_row("duration", format_duration(facts["duration_s"]))
        peak = f"peak {facts['peak_rate_1s']:.3g} over 1 s, {facts['peak_rate_10s']:.3g} over 10 s"
        table.add_row("requests per s", f"mean {facts['rate_per_s']:.3g}, {peak}")
    for side in ("prompt", "output"):
        tokens = "  ".join(f"{name} {value:,.0f}" for name, value in facts[side].items() if value is not None)
        table.add_row(f"{side} tokens", tokens)
    if facts["reusable_share"] is not None:
        text = f"{facts['reusable_share']:.1%} of prompt tokens begin like an earlier prompt"
        with_answers = reusable_share(trace, answers=True)
        if with_answers and with_answers > facts["reusable_share"]:
            text += f"; {with_answers:.1%} with earlier answers"
        table.add_row("reusable", text)
    if facts["block_size"]:
        table.add_row("block size", f"{facts['block_size']} tokens")
    for note in trace.notes:
        table.add_row("note", note)
    return table
