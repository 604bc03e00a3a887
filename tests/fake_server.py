"""An OpenAI-compatible server on loopback that streams with known delays."""

from __future__ import annotations

import asyncio
import json
from typing import Any

FIRST_S, GAP_S = 0.05, 0.02


class Fake:
    """Answers /v1/completions with as many tokens as asked for, the first after FIRST_S, the others GAP_S apart."""

    def __init__(self, first_s: float = FIRST_S, status: int = 200, silent: bool = False, dies_after: int = 0,
                 empty: tuple[int, ...] = (), ends: str = "") -> None:  # fmt: skip
        """`dies_after` so many tokens the connection is gone; tokens in `empty` are no text yet; `ends`: vllm's last
        token says that it is the last, llama.cpp sends one more event that says so."""
        self.first_s, self.status, self.silent = first_s, status, silent
        self.dies_after, self.empty, self.ends = dies_after, empty, ends
        self.bodies: list[dict[str, Any]] = []
        self.most = self.now = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        if head.startswith("GET"):
            answer = json.dumps({"data": [{"id": "tiny"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
        elif self.status != 200:
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 4\r\n\r\nbusy" % self.status)
        else:
            self.now += 1
            self.most = max(self.most, self.now)
            await self._stream(json.loads(body), writer)
            self.now -= 1
        await writer.drain()
        writer.close()

    async def _stream(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(asked)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for token in range(asked["max_tokens"]):
            await asyncio.sleep(3600 if self.silent else GAP_S if token else self.first_s)
            if self.dies_after and token == self.dies_after:
                return
            last = self.ends == "vllm" and token == asked["max_tokens"] - 1
            _event(writer, {"choices": [{"text": "" if token in self.empty else " x",
                                         "finish_reason": "length" if last else None}]})  # fmt: skip
            await writer.drain()
        if self.ends == "llama.cpp":
            _event(writer, {"choices": [{"text": "", "finish_reason": "length"}]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"],
                 "prompt_tokens_details": {"cached_tokens": 7}}  # fmt: skip
        _event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    data = f"data: {json.dumps(event)}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
