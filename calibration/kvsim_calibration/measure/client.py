"""Open-loop load: requests are sent when the trace says, however slow the server is, and every token's time is kept.

A follow-up is sent its think time after its parent's last token. Where a cap on concurrency holds a request back it
waits here, its arrival stays the trace's, and the wait counts: a client that waits for answers hides a slow server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from kvsim.engine.arrivals import Arrivals
from kvsim.engine.decode_set import NEVER
from kvsim.errors import InputError
from kvsim.record import COMPLETED, FAILED, REFUSED, REQUEST_COLUMNS, TIMELINE_COLUMNS
from kvsim.result import Result
from kvsim.trace import Trace
from kvsim.trace.types import Int
from kvsim.units import NS_PER_S
from kvsim_calibration.measure.http import Answer, HttpError, Server
from kvsim_calibration.measure.prompts import text, token_ids

SAMPLE_NS = 100_000_000
"""the timeline has at most a row in so long"""


@dataclass(frozen=True)
class Load:
    """How to ask."""

    model: str
    vocab: int = 32_000
    as_text: bool = False
    concurrency: int = 0
    """most requests in flight; 0: as many as come"""
    timeout_s: float = 600.0
    warmup: int = 2
    max_model_len: int = NEVER
    seed: int = 0

    def body(self, prompt: Int, output: int) -> dict[str, Any]:
        """The request for `output` tokens, no fewer, after these token ids."""
        return {
            "model": self.model, "prompt": text(prompt) if self.as_text else prompt.tolist(),
            "max_tokens": max(1, output), "min_tokens": max(1, output), "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip


async def completion(answer: Answer) -> AsyncIterator[tuple[int, dict[str, Any], bool]]:
    """(monotonic ns, the event, whether it is a token's) of a streamed answer. Raises HttpError.

    One event may hold several tokens where the server fell behind, or none that can be read yet (part of a character):
    vLLM sends that one empty, llama.cpp not at all. Empty, too, is llama.cpp's word that it has finished: no token."""
    first = True
    async for event in answer.events():
        now = time.monotonic_ns()
        if "error" in event:
            raise HttpError(f"error in the stream: {event['error']}")
        choices = event.get("choices") or []
        is_token = bool(choices) and (first or bool(choices[0].get("text")) or not choices[0].get("finish_reason"))
        first = first and not choices
        yield now, event, is_token


async def served_model(server: Server, timeout_s: float = 10.0) -> str:
    """The first model that the server offers. Raises InputError where there is no such server."""
    import json

    try:
        async with asyncio.timeout(timeout_s), server.request("GET", "/v1/models") as answer:
            return str(json.loads(await answer.all())["data"][0]["id"])
    except (OSError, HttpError, TimeoutError) as error:
        raise InputError(f"no OpenAI-compatible server answers at {server.url}: {error or 'timeout'}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise InputError(f"{server.url}/v1/models lists no model; say --model") from None


@dataclass
class Measurement:
    """A trace on its way through a server. Times are ns from the first arrival."""

    server: Server
    load: Load
    trace: Trace
    progress: Callable[[float, float], None] | None = None
    columns: dict[str, list[int]] = field(init=False)
    reasons: list[str] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    output: list[int] = field(init=False)
    prompt: list[int] = field(init=False)
    timeline: list[tuple[int, ...]] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    """reason → what the server said to the first request that failed for it"""
    _running: int = 0
    _waiting: int = 0

    def __post_init__(self) -> None:
        neutral = {"cached_tokens": 0, "recomputed_tokens": 0, "preemptions": 0, "status": FAILED}
        self.columns = {name: [neutral.get(name, -1)] * len(self.trace) for name in REQUEST_COLUMNS}
        self.output = [0] * len(self.trace)
        self.prompt = self.trace.prompt_tokens.tolist()

    async def run(self, stop: asyncio.Event) -> None:
        """Warm up, then send everything; once `stop` is set, what is in flight is given up and recorded so."""
        if self.load.warmup:
            await self._warm_up()
        self._begin = time.monotonic_ns()
        self._slots = asyncio.Semaphore(self.load.concurrency or 1 << 30)
        self._arrivals = Arrivals(self.trace)
        self._ended = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            due = self._arrivals.next_ns
            if due == NEVER and not tasks:
                break
            if due <= self._now():
                at, row = self._arrivals.pop()
                self.columns["arrival_ns"][row] = at
                task = asyncio.create_task(self._one(row))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                continue
            self._ended.clear()
            ended = asyncio.create_task(self._ended.wait())
            left = None if due == NEVER else (due - self._now()) / NS_PER_S
            await asyncio.wait({ended, stopping}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        stopping.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sample(force=True)

    def _now(self) -> int:
        return time.monotonic_ns() - self._begin

    async def _warm_up(self) -> None:
        """A few requests one by one, with prompts of their own, before the clock starts."""
        longest = min(512, max(self.prompt, default=1))
        for number in range(self.load.warmup):
            prompt = token_ids(_alone(longest), 0, self.load.vocab, self.load.seed + 1 + number)
            try:
                async with asyncio.timeout(self.load.timeout_s), self.server.request(
                    "POST", "/v1/completions", self.load.body(prompt, 16)
                ) as answer:
                    async for _ in answer.events():
                        pass
            except (OSError, HttpError, TimeoutError) as error:
                raise InputError(f"{self.server.url} does not answer a request of {longest} prompt tokens: "
                                 f"{error or 'timeout'}") from None  # fmt: skip

    async def _one(self, row: int) -> None:
        """One request, from its arrival to its last token or its failure."""
        columns, wanted = self.columns, int(self.trace.output_tokens[row])
        if self.prompt[row] + wanted > self.load.max_model_len:
            self._fail(row, REFUSED, "too_long")
            return
        body = self.load.body(token_ids(self.trace, row, self.load.vocab, self.load.seed), wanted)
        self._waiting += 1
        held = True
        try:
            async with self._slots:
                self._waiting, held = self._waiting - 1, False
                self._running += 1
                columns["scheduled_ns"][row] = self._now()
                self._sample()
                try:
                    async with asyncio.timeout(self.load.timeout_s), self.server.request(
                        "POST", "/v1/completions", body
                    ) as answer:
                        await self._read(row, answer)
                finally:
                    self._running -= 1
                    self._sample()
        except TimeoutError:
            self._fail(row, FAILED, "timeout")
        except HttpError as error:
            reason, _, said = str(error).partition(": ")
            self._fail(row, FAILED, reason)
            if said:
                self.said.setdefault(reason, said)
        except OSError as error:
            self._fail(row, FAILED, f"connection: {error.strerror or type(error).__name__}")
        except asyncio.CancelledError:
            self._fail(row, FAILED, "interrupted")
        else:
            self._complete(row)
        finally:
            self._waiting -= held

    async def _read(self, row: int, answer: Answer) -> None:
        """Keep the time of every piece of text, and what the server counted."""
        columns = self.columns
        events = 0
        usage: dict[str, Any] = {}
        async for at, event, is_token in completion(answer):
            now = at - self._begin
            usage = event.get("usage") or usage
            if is_token and events:
                self.gaps.append(now - columns["last_token_ns"][row])
            elif is_token:
                columns["first_token_ns"][row] = now
            if event.get("choices"):
                columns["last_token_ns"][row] = now
            events += is_token
        if not events:
            raise HttpError("an empty answer")
        self.output[row] = int(usage.get("completion_tokens") or events)
        self.prompt[row] = int(usage.get("prompt_tokens") or self.prompt[row])
        columns["cached_tokens"][row] = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def _complete(self, row: int) -> None:
        self.columns["status"][row], self.columns["replica"][row] = COMPLETED, 0
        self._arrivals.ended(row, self.columns["last_token_ns"][row])
        self._count()

    def _fail(self, row: int, status: int, reason: str) -> None:
        self._mark(row, status, reason)
        for child in self._arrivals.orphans(row):
            self.columns["arrival_ns"][child] = self.columns["arrival_ns"][row]
            self._mark(child, REFUSED, "parent_refused")
        self._count()

    def _mark(self, row: int, status: int, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.columns["status"][row], self.columns["reason"][row] = status, self.reasons.index(reason)

    def _count(self) -> None:
        self._ended.set()
        if self.progress is not None:
            self.progress(sum(reason >= 0 or status == COMPLETED for reason, status in zip(
                self.columns["reason"], self.columns["status"], strict=True)), len(self.trace))  # fmt: skip

    def _sample(self, force: bool = False) -> None:
        now = self._now()
        if force or not self.timeline or now - self.timeline[-1][0] >= SAMPLE_NS:
            nothing = (0,) * (len(TIMELINE_COLUMNS) - 4)
            self.timeline.append((now, 0, self._running, self._waiting, *nothing))

    def result(self, run: dict[str, Any]) -> Result:
        """What was sent so far. Requests that were not are left out, with a note."""
        sent = [row for row, arrival in enumerate(self.columns["arrival_ns"]) if arrival >= 0]
        notes = [*self.trace.notes, *(f"{reason}: the server said {said!r}" for reason, said in self.said.items())]
        if len(sent) < len(self.trace):
            notes.append(f"interrupted: {len(self.trace) - len(sent)} of {len(self.trace)} requests were not sent")
        pick = {name: [values[row] for row in sent] for name, values in self.columns.items()}
        pick |= {"id": sent, "session": self.trace.session[sent], "prompt_tokens": [self.prompt[row] for row in sent],
                 "output_tokens": [self.output[row] if self.output[row] else int(self.trace.output_tokens[row])
                                   for row in sent]}  # fmt: skip
        timeline = dict(zip(TIMELINE_COLUMNS, zip(*self.timeline, strict=True), strict=True))
        steps: dict[str, Any] = dict.fromkeys(
            ("start_ns", "end_ns", "steps", "replica", "decode", "chunks", "prefill_tokens", "attended"), ()
        )
        run = run | {"notes": notes, "dropped": dict(self.trace.dropped)}
        return Result.from_columns(run, pick, timeline, steps, (self.gaps, [1] * len(self.gaps)), self.reasons)


def _alone(tokens: int) -> Trace:
    from kvsim.trace.types import make_trace

    return make_trace("warm-up", "synthetic", [0], [tokens], [16])
