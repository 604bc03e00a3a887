"""Measured vLLM runs of LLMServingSim's bench (casys-kaist/LLMServingSim, MIT), and the workloads they were sent.

A run's `requests.jsonl` has two clocks; arrival is `queued_ts`, the engine's own. Where the workload (token ids of
every prompt and answer) lies in or near the folder it is found by its lengths, and its token ids become chained block
ids of a chosen size (16 unless said), so that prefix hits are those of the real run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import InputError
from kvsim.trace.build import Rows, finish
from kvsim.trace.chain import Blocks
from kvsim.trace.files import Member, Source, open_source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.jsonlines import JsonLines, has_keys
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_S

_RUN = ("request_id", "input_toks", "output_toks", "queued_ts")
_WORKLOAD = ("input_toks", "output_toks", "arrival_time_ns", "input_tok_ids")
_BLOCK = 16


@FORMATS("vllm-bench")
class Measured(TraceFormat):
    about = "measured vLLM runs of LLMServingSim's bench (a folder with requests.jsonl, or that file)"
    columns = _RUN

    @staticmethod
    def sniff(source: Source) -> bool:
        return any(has_keys(member, _RUN) for member in source.members)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        runs = [member for member in source.members if has_keys(member, _RUN)]
        if len(runs) > 1:
            first = runs[0].name.rpartition("/")[0]
            raise InputError(f"{source.path} holds {len(runs)} measured runs: name one, like {source.path}::{first}")
        lines = JsonLines(runs[0])
        names = lines.column("request_id")
        if len(set(names)) < len(names):
            row = next(row for row, name in enumerate(names) if name in names[:row])
            raise InputError(f"{lines.where(row)}: request_id {names[row]!r} is there twice, each must be its own")
        rows = Rows(
            lines.times("queued_ts", NS_PER_S), lines.tokens("input_toks"), lines.tokens("output_toks")
        )
        workload = _workload(source, lines)
        if workload is None:
            rows.notes.append("no workload with these lengths lies beside the run: its prompts share no known prefix")
        else:
            rows.blocks = _blocks(workload, options.block_size or _BLOCK, rows.output)
        return finish(rows, source.name, "vllm-bench", where=lines.where)


@FORMATS("vllm-bench-workload")
class Workload(TraceFormat):
    about = "workloads of LLMServingSim's bench (JSON lines: input_toks, output_toks, arrival_time_ns, input_tok_ids)"
    columns = _WORKLOAD

    @staticmethod
    def sniff(source: Source) -> bool:
        return source.single and has_keys(source.only(), _WORKLOAD)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        lines = JsonLines(source.only())
        rows = Rows(lines.times("arrival_time_ns", 1), lines.tokens("input_toks"), lines.tokens("output_toks"))
        rows.blocks = _blocks(lines, options.block_size or _BLOCK, rows.output)
        return finish(rows, source.name, "vllm-bench-workload", where=lines.where)


def _workload(source: Source, run: JsonLines) -> JsonLines | None:
    """The workload with the run's lengths: in the folder or tar of the run, above it, or in a `workloads` beside."""
    sent = run.column("input_toks")
    for member in _near(source):
        if has_keys(member, _WORKLOAD):
            lines = JsonLines(member)
            if lines.column("input_toks") == sent:
                return lines
    return None


def _near(source: Source) -> list[Member]:
    archive, inside, _ = source.path.partition("::")
    if inside:
        return list(open_source(archive).members)
    place = Path(source.path)
    if place.is_file() and not source.single:
        return list(source.members)
    here = place if place.is_dir() else place.parent
    above = here.resolve().parent
    files = [*here.iterdir(), *above.iterdir(), *here.glob("workloads/*"), *above.glob("workloads/*")]
    return [open_source(str(file)).only() for file in sorted(files) if file.is_file() and ".jsonl" in file.name]


def _blocks(workload: JsonLines, size: int, output: Int) -> Blocks:
    """Token ids → chained ids of the full blocks of prompt and `output` tokens of the answer (rule `floor`)."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    ids: list[int] = []
    start = [0]
    answers = workload.optional("output_tok_ids")
    for row, prompt in enumerate(workload.column("input_tok_ids")):
        answer = answers[row] or []
        if not isinstance(prompt, list) or len(prompt) != workload.objects[row]["input_toks"]:
            raise InputError(f"{workload.where(row)}: input_tok_ids must be a list of input_toks token ids")
        if not isinstance(answer, list) or not all(type(token) is int for token in prompt + answer):
            raise InputError(f"{workload.where(row)}: token ids must be whole numbers")
        text = prompt + answer[: int(output[row])]
        before = -1
        for first in range(0, len(text) - size + 1, size):
            before = known.setdefault((before, tuple(text[first : first + size])), len(known))
            ids.append(before)
        start.append(len(ids))
    bounds = np.asarray(start, np.int64)
    return Blocks.of_size(np.asarray(ids, np.int64), bounds, size, "floor", bounds[1:])
