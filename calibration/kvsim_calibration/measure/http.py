"""The few lines of HTTP that a load generator needs: one request a connection, answers read as they come.

Nothing but asyncio, so that what is timed is the server: no pool that hands out connections late, no buffering.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kvsim.errors import InputError

_LONGEST_LINE = 1 << 24
_MOST_OF_AN_ERROR = 2000


class HttpError(Exception):
    """An answer other than 200, or none that is HTTP."""


@dataclass(frozen=True)
class Server:
    """Where requests go: `http://host:port/prefix`, and what goes with each."""

    url: str
    key: str | None = None
    """sent as a bearer token"""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--url is {self.url!r}; write it like http://127.0.0.1:8000")

    @property
    def base(self) -> str:
        """Path before `/v1/…`; a URL may or may not name the v1 itself."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")

    @asynccontextmanager
    async def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> AsyncIterator[Answer]:
        """An answer of status 200, to be read inside the `async with`. Raises HttpError, OSError."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if secure else 80), limit=_LONGEST_LINE,
            ssl=ssl.create_default_context() if secure else None,
        )  # fmt: skip
        try:
            content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
            lines = [f"{method} {self.base}{path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close",
                     "Content-Type: application/json", f"Content-Length: {len(content)}"]  # fmt: skip
            lines += [f"Authorization: Bearer {self.key}"] if self.key else []
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
            await writer.drain()
            yield await _answer(reader)
        finally:
            writer.close()


@dataclass(frozen=True)
class Answer:
    """The body of an answer, not read yet."""

    reader: asyncio.StreamReader
    chunked: bool
    length: int | None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Bytes as they arrive. Raises HttpError where the connection ends early."""
        left = self.length
        while True:
            if self.chunked:
                line = await self.reader.readline()
                if not line:  # not even the last chunk, of size 0: the server died
                    raise HttpError("the connection was closed")
                try:
                    size = int(line.split(b";")[0], 16)
                except ValueError:
                    raise HttpError("the answer is not HTTP") from None
                if not size:
                    return
                yield await _exactly(self.reader, size)
                await self.reader.readline()
            else:
                piece = await self.reader.read(65536 if left is None else min(65536, left))
                if not piece:
                    if left:
                        raise HttpError("the connection was closed")
                    return
                left = None if left is None else left - len(piece)
                yield piece

    async def all(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The objects of a stream of server-sent events, each when its line is whole; ends at `[DONE]`. Raises
        HttpError where the stream ends without it."""
        rest = b""
        async for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                try:
                    yield json.loads(data)
                except ValueError:
                    raise HttpError(f"an event is not JSON: {data[:80]!r}") from None
        raise HttpError("the connection was closed")


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise HttpError("the connection was closed") from None


async def _answer(reader: asyncio.StreamReader) -> Answer:
    status = (await reader.readline()).split(None, 2)
    if len(status) < 2 or not status[0].startswith(b"HTTP/"):
        raise HttpError("the connection was closed" if not status else "the answer is not HTTP")
    headers: dict[bytes, bytes] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    length = headers.get(b"content-length")
    answer = Answer(reader, headers.get(b"transfer-encoding", b"").lower() == b"chunked",
                    None if length is None else int(length))  # fmt: skip
    if status[1] != b"200":
        text = (await answer.all())[:_MOST_OF_AN_ERROR].decode("utf-8", "replace")
        raise HttpError(f"HTTP {status[1].decode()}: {' '.join(text.split())[:200]}")
    return answer
