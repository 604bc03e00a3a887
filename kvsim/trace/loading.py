"""The one way to a trace: a file, a folder, a tar, the bundled sample, or a generator's name → Trace.

After the name, `?key=value&key=value` says more, wherever a trace is accepted: `chat.csv?limit=1000`,
`lengths.csv?arrivals=poisson:2&seed=3`, `synth:chat?rate=2`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from kvsim.errors import InputError
from kvsim.registry import unknown
from kvsim.trace.arrivals import parse_arrivals
from kvsim.trace.files import Member, Source, open_source, place_of
from kvsim.trace.types import Trace

SAMPLE = "sample"
_KEYS = ("format", "arrivals", "seed", "block_size", "start", "duration", "limit")


def load(
    path: str | Path,
    *,
    format: str | None = None,
    arrivals: str | None = None,
    seed: int = 0,
    block_size: int | None = None,
    untimed: str | None = None,
) -> Trace:
    """The trace at `path`, its format told from the content unless `format` names it.

    `arrivals` (`poisson:2`, see `kvsim.trace.arrivals`) says when requests and conversations begin, instead of the
    file; `untimed` says so only where the file does not (lengths alone, conversations that have clocks of their own).
    `seed` is for what is drawn; `block_size` for files whose block ids are computed from token ids, and for Mooncake's
    format with other blocks than 512 tokens.
    `path` may be `sample`, `synth:PRESET`, `ARCHIVE::MEMBER`, each with `?key=value&…` behind it: format, arrivals,
    seed, block_size, start, duration, limit, and for `synth:` the fields of SynthSpec.
    Raises InputError with file and line.
    """
    from kvsim.trace import synth, transform
    from kvsim.trace.formats import FORMATS, ReadOptions

    name, said = _split(str(path))
    if name.startswith(synth.PREFIX):
        return synth.from_text(name.removeprefix(synth.PREFIX), said)
    _refuse_unknown(name, said)
    format, arrivals = said.get("format", format), said.get("arrivals", arrivals)
    seed = _whole(said, "seed", seed)
    start = _duration(said, "start")
    end = None if "duration" not in said else (start or 0) + (_duration(said, "duration") or 0)
    process = parse_arrivals(arrivals) if arrivals else None
    options = ReadOptions(
        arrivals=process or (parse_arrivals(untimed) if untimed else None),
        seed=seed,
        block_size=_whole(said, "block_size", block_size) if "block_size" in said else block_size,
        start_ns=start,
        end_ns=end,
    )
    if options.block_size is not None and options.block_size < 1:
        raise InputError(f"block size is {options.block_size} tokens, it must be 1 or more")
    source = _sample() if name == SAMPLE and not Path(name).exists() else open_source(name)
    if format:
        reader = FORMATS.get(format)
        chosen = format
    else:
        source, chosen = recognise(source)
        reader = FORMATS.get(chosen)
    trace = reader.read(source, options)
    if process is not None and not reader.untimed:
        trace = transform.set_arrivals(trace, process, seed)
    if (start is not None or end is not None) and chosen != "servegen":
        trace = transform.slice_time(trace, start or 0, end)
    if "limit" in said:
        trace = transform.limit(trace, _whole(said, "limit", 0))
    return trace


def readable(path: str, *, format: str | None = None, arrivals: str | None = None) -> None:
    """Raises InputError for what `load` would refuse by its names alone: no such file, preset, option or format."""
    from kvsim.trace import synth
    from kvsim.trace.formats import FORMATS

    name, said = _split(path)
    if name.startswith(synth.PREFIX):
        synth.spec_from_text(name.removeprefix(synth.PREFIX), said)
        return
    _refuse_unknown(name, said)
    if format := said.get("format", format):
        FORMATS.get(format)
    if arrivals := said.get("arrivals", arrivals):
        parse_arrivals(arrivals)
    if name != SAMPLE:
        place_of(name)


def _refuse_unknown(name: str, said: Iterable[str]) -> None:
    """Raises InputError where there is no name, or an option that no trace file has."""
    if not name.strip():
        raise InputError("the trace has no name: give a file, `sample` or `synth:PRESET`")
    for key in said:
        if key not in _KEYS:
            raise unknown("trace option", key, list(_KEYS))


def recognise(source: Source) -> tuple[Source, str]:
    """The name of the source's format; where it is a folder or tar with one trace file in it, that file."""
    from kvsim.trace.formats import FORMATS

    for name, reader in FORMATS.items():
        if reader.sniff(source):
            return source, name
    if source.single:
        raise _unrecognised(source)
    found = []
    for member in source.members:
        alone = Source(member.label, (member,), single=True)
        found += [(alone, name) for name, reader in FORMATS.items() if reader.sniff(alone)]
    if not found:
        raise InputError(
            f"{source.path} holds no trace: none of its {len(source.members)} files is of a known format "
            "(kvsim list trace-formats)"
        )
    if len(found) > 1:
        names = ", ".join(alone.path for alone, _ in found[:4]) + (", …" if len(found) > 4 else "")
        raise InputError(f"{source.path} holds {len(found)} traces: name one of {names}")
    return found[0]


def _unrecognised(source: Source) -> InputError:
    """Says what is wrong with the nearest format: its separators, or a column."""
    from kvsim.trace.formats import FORMATS
    from kvsim.trace.formats.jsonlines import keys
    from kvsim.trace.formats.table import header, listed, other_delimiter

    member = source.only()
    member.text()  # says so where it is damaged, or no text
    if member.first_line().startswith("version https://git-lfs"):
        return InputError(f"{member.label} is a Git LFS pointer, not the data: fetch it with `git lfs pull`")
    names = keys(member) or {name.strip() for name in header(member)}
    best: tuple[int, str, list[str]] = (0, "", [])
    for name, reader in FORMATS.items():
        if reader.columns and (word := other_delimiter(member, reader.columns)):
            return InputError(f"{member.label} line 1: columns are separated by {word}, it must be commas")
        common = len(names & set(reader.columns))
        if common > best[0]:
            best = common, name, [column for column in reader.columns if column not in names]
    if best[2]:
        column = best[2][0]
        near = difflib.get_close_matches(column, list(names), n=1)
        has = f"it has {near[0]!r} instead" if near else f"it has {listed(sorted(names))}"
        return InputError(f"{member.label} line 1 looks like format {best[1]!r}, but has no column {column!r}: {has}")
    return InputError(f"{member.label} is not a trace of a known format: see kvsim list trace-formats")


def _split(text: str) -> tuple[str, dict[str, str]]:
    """`name?key=value&…` → name and options. A file whose name holds a `?` is that file."""
    name, mark, query = text.partition("?")
    if not mark or Path(text).exists():
        return text, {}
    said = {}
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if not equals or not value or key in said:
            raise InputError(f"trace {text!r}: after the '?' stand key=value pairs, each key once, joined by '&'")
        said[key] = value
    return name, said


def _whole(said: dict[str, str], key: str, default: int | None) -> int:
    try:
        return int(said.get(key, default if default is not None else 0))
    except ValueError:
        raise InputError(f"trace option {key} is {said[key]!r}, it must be a whole number") from None


def _duration(said: dict[str, str], key: str) -> int | None:
    from kvsim.units import parse_duration_ns

    return parse_duration_ns(said[key]) if key in said else None


def _sample() -> Source:
    """The bundled hour of chat traffic (kvsim/data/samples)."""
    from importlib.resources import files

    place = files("kvsim") / "data" / "samples" / "chat-hour.csv.gz"
    data = place.read_bytes()
    return Source("sample", (Member("sample", "chat-hour.csv", lambda n: data if n < 0 else data[:n]),), single=True)
