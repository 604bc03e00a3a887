"""A request's life as spans: queued, prefill chunk by chunk, decode, preempted, swapped, loading."""

from __future__ import annotations

import polars as pl

from kvsim_app.overheard import CHUNK, LOADING, PREEMPTED, PROMPT_END, RESUMED, SWAPPED

COLUMNS = ("id", "phase", "start_ns", "end_ns", "tokens", "part")
_BEGINS = {
    PROMPT_END: "decode", RESUMED: "decode", PREEMPTED: "preempted", SWAPPED: "swapped", LOADING: "loading"
}  # fmt: skip
"""what lasts from an event to the request's next one"""


def phases(requests: pl.DataFrame, events: pl.DataFrame | None = None) -> pl.DataFrame:
    """A row a span of completed `requests` (of a Result): COLUMNS, by request and time. A chunk of prefill says its
    `tokens` and which `part` it is. A request of which nothing was overheard has one span of prefill, until its first
    token, and one of decode."""
    heard = events.join(requests.select("id"), left_on="row", right_on="id", how="semi") if events is not None else None
    silent = requests if heard is None else requests.join(heard, left_on="id", right_on="row", how="anti")
    first = pl.coalesce("first_token_ns", "last_token_ns")
    parts = [
        _spans(requests, "queued", "arrival_ns", "scheduled_ns"),
        _spans(silent, "prefill", "scheduled_ns", first),
        _spans(silent, "decode", "first_token_ns", "last_token_ns"),
    ]
    if heard is not None:
        parts += _overheard(requests, heard)
    return pl.concat(parts).filter(pl.col("end_ns") > pl.col("start_ns")).sort("id", "start_ns")


def _spans(frame: pl.DataFrame, phase: str, start: str, end: str | pl.Expr) -> pl.DataFrame:
    zero = pl.lit(0, pl.Int64)
    until = pl.col(end) if isinstance(end, str) else end
    return frame.select("id", phase=pl.lit(phase), start_ns=start, end_ns=until, tokens=zero, part=zero)


def _overheard(requests: pl.DataFrame, events: pl.DataFrame) -> list[pl.DataFrame]:
    events = events.join(requests.select("id", "last_token_ns"), left_on="row", right_on="id", maintain_order="left")
    is_chunk = pl.col("event").is_in([CHUNK, PROMPT_END])
    events = events.rename({"row": "id"}).with_columns(
        after_ns=pl.col("start_ns").shift(-1).over("id").fill_null(pl.col("last_token_ns")),
        part=is_chunk.cast(pl.Int64).cum_sum().over("id"),
    )
    chunks = events.filter(is_chunk).with_columns(phase=pl.lit("prefill")).select(COLUMNS)
    lasting = events.filter(pl.col("event") != CHUNK).with_columns(
        phase=pl.col("event").replace_strict(_BEGINS, return_dtype=pl.String),
        start_ns=pl.when(is_chunk).then("end_ns").otherwise("start_ns"),
        end_ns="after_ns",
        tokens=pl.lit(0, pl.Int64),
        part=pl.lit(0, pl.Int64),
    )
    return [chunks, lasting.select(COLUMNS)]
