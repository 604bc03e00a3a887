"""Claude Code conversations (callanjfox/kv-cache-tester, Apache-2.0): one JSON object a conversation, 64-token blocks.

* The partial last block has no id (rule `floor`); ids mean nothing across files, so each file gets a range of its own.
* A call waits for the one before it in its list: parent, and a think time of what the clock says between them.
  Subagents have lists of their own, which may run beside the main one; their `t` restarts, or (later collections) not.
* Conversations have clocks of their own: when each begins comes from an arrival process.
* Where a call repeats the whole prompt before it and has grown by at least the answer, the answer is taken to be what
  follows, so its blocks get the ids of the call that repeats it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.errors import InputError
from kvsim.trace import build
from kvsim.trace.arrivals import Arrivals
from kvsim.trace.build import Rows, finish
from kvsim.trace.chain import Blocks
from kvsim.trace.files import Member, Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_S

_KEYS = ("block_size", "hash_id_scope", "requests")
_IDS = re.compile(r'"hash_ids"\s*:\s*\[((?:\s*\d{1,18}\s*,)*\s*\d{1,18}\s*|\s*)\]')
_STARTS = Arrivals("poisson", rate=1 / 60)


@dataclass(slots=True)
class _Call:
    where: str
    session: int
    t: object
    """seconds since its conversation began"""
    prompt: object
    output: object
    api_s: object
    ids: Int
    before: int
    """the call it waits for: the one before it in its list, or before its list; −1: none"""


@FORMATS("claude-code")
class ClaudeCode(TraceFormat):
    about = "Claude Code conversations (a JSON file each; folder or tar of them): chained 64-token blocks, think times"
    untimed = True

    @staticmethod
    def sniff(source: Source) -> bool:
        return any(_is_conversation(member) for member in source.members)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        calls: list[_Call] = []
        size = 0
        named = 0  # ids given out so far
        files = [member for member in source.members if _is_conversation(member)]
        for session, member in enumerate(files):
            found, lists = _object(member)
            if size and found["block_size"] != size:
                raise InputError(f"{member.label}: block_size is {found['block_size']}, the others' {size}")
            size = found["block_size"]
            first = len(calls)
            _walk(found["requests"], 0.0, member.label, session, -1, calls, lists)
            for call in calls[first:]:
                call.ids += named
            named = max((int(call.ids.max(initial=-1)) + 1 for call in calls[first:]), default=named)
        if not calls:
            raise InputError(f"{source.path}: its conversations hold no requests")
        return _trace(source, options, calls, len(files), size)


def _is_conversation(member: Member) -> bool:
    head = member.head()
    return head.lstrip().startswith("{") and all(f'"{key}"' in head for key in _KEYS)


def _object(member: Member) -> tuple[dict[str, Any], list[Int]]:
    """The conversation, and its lists of ids, for which the number of the list stands in it.

    Nearly all of a file is ids: taken out as text they are read three times as fast.
    """
    lists: list[Int] = []

    def take_out(match: re.Match[str]) -> str:
        lists.append(np.fromstring(match[1], np.int64, sep=","))
        return f'"hash_ids":{len(lists) - 1}'

    try:
        found = json.loads(_IDS.sub(take_out, member.text()))
    except ValueError as error:
        raise InputError(f"{member.label} is not JSON ({error}): a conversation is one object") from None
    size, requests = found.get("block_size"), found.get("requests")
    if type(size) is not int or size < 1 or not isinstance(requests, list):
        raise InputError(f"{member.label}: a conversation needs block_size (tokens) and requests (a list)")
    return dict(found), lists


def _walk(
    requests: list[Any], since: float, label: str, session: int, before: int, calls: list[_Call], lists: list[Int]
) -> None:
    """Append the calls of one list, and of the lists nested in it, in their order. `since`: where its clock begins."""
    for number, entry in enumerate(requests, 1):
        where = f"{label} request {number}"
        t = entry.get("t") if isinstance(entry, dict) else None
        if not isinstance(t, int | float):
            raise InputError(f"{where}: t is {t!r}, it must be seconds since the conversation began")
        inner = entry.get("requests")
        if isinstance(inner, list):
            first = inner[0].get("t", 0) if inner and isinstance(inner[0], dict) else 0
            absolute = first >= since + t > 0  # later collections; else the clock of the nested list restarts at 0
            _walk(inner, 0.0 if absolute else since + t, where, session, before, calls, lists)
            continue
        number_of_list = entry.get("hash_ids")
        if type(number_of_list) is not int:
            raise InputError(f"{where}: hash_ids must be a list of whole numbers, 0 or more")
        ids = lists[number_of_list]
        calls.append(
            _Call(where, session, since + t, entry.get("in"), entry.get("out"), entry.get("api_time"), ids, before)
        )
        before = len(calls) - 1


def _trace(source: Source, options: ReadOptions, calls: list[_Call], conversations: int, size: int) -> Trace:
    def where(row: int) -> str:
        return calls[row].where

    notes = []
    prompt = build.tokens([call.prompt for call in calls], "in", where)
    output = build.tokens([call.output for call in calls], "out", where)
    t = build.floats([call.t for call in calls], "t", where)
    session = np.array([call.session for call in calls], np.int64)
    before = np.array([call.before for call in calls], np.int64)
    for row, call in enumerate(calls):
        if len(call.ids) != prompt[row] // size:
            raise InputError(
                f"{where(row)}: {len(call.ids)} hash_ids for {prompt[row]} prompt tokens, there must be "
                f"{prompt[row] // size}, one per full {size}-token block"
            )

    said = np.array([c.api_s if isinstance(c.api_s, int | float) else np.nan for c in calls])
    known = ~np.isnan(said)
    paces = said[known & (output > 0)] / output[known & (output > 0)]
    pace = float(np.median(paces)) if len(paces) else 0.0
    took = np.where(known, said, pace * output)
    if not known.all():
        notes.append(
            f"{(~known).sum()} calls do not say how long they took: think times after them assume "
            f"{pace * 1e3:.0f} ms an output token, the median of the others"
        )
    think = np.where(before >= 0, np.maximum(0.0, t - t[before] - took[before]), 0.0)

    starts = np.zeros(conversations, np.int64)
    if conversations > 1:
        process = options.arrivals or _STARTS
        starts = process.times(conversations, np.random.default_rng(options.seed))
        chosen = process.kind if options.arrivals else "poisson, one a minute; choose with ?arrivals=poisson:RATE"
        notes.append(f"{conversations} conversations have clocks of their own: their beginnings are drawn ({chosen})")
    blocks, told = _with_answers(calls, prompt, output, size)
    notes.append(f"{told} answers are repeated by the call after them: its block ids cover them too")
    rows = Rows(
        starts[session] + build.times(t, NS_PER_S, "t", where),
        prompt,
        output,
        session=session,
        parent=before,
        think_ns=build.times(think, NS_PER_S, "think time", where),
        blocks=blocks,
        notes=notes,
    )
    return finish(rows, source.name, "claude-code", where=where, clock=False)


def _with_answers(calls: list[_Call], prompt: Int, output: Int, size: int) -> tuple[Blocks, int]:
    """Block ids of prompts, and of answers that the next call repeats; how many those are."""
    ids = [call.ids for call in calls]
    told = 0
    for row, call in enumerate(calls):
        before = call.before
        if before < 0:
            continue
        asked, answered = calls[before].ids, int(prompt[before] + output[before])
        if prompt[row] >= answered and np.array_equal(call.ids[: len(asked)], asked):
            ids[before] = call.ids[: answered // size]
            told += 1
    start = np.concatenate([[0], np.cumsum([len(own) for own in ids])]).astype(np.int64)
    return Blocks.of_size(np.concatenate(ids), start, size, "floor", prompt), told
