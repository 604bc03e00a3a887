"""The small worlds of the lessons: a toy pool and a toy cache, as plain lists that charts draw."""

from __future__ import annotations

from collections.abc import Sequence

ANSWERS = (9, 3, 14, 6, 11, 4)
"""tokens that the toy's requests will have in the end"""
SLOTS = 96


def toy_pool(paged: bool, block: int, longest: int, now: int) -> tuple[list[tuple[str, str]], int]:
    """(owner and state of each of SLOTS slots after `now` tokens, requests that found room).

    Contiguous: `longest` slots a request up front. Paged: blocks of `block` as the request grows, wherever one is free.
    """
    cells = [("nobody", "free")] * SLOTS
    admitted = 0
    if not paged:
        for number, final in enumerate(ANSWERS):
            start = number * longest
            if start + longest > SLOTS:
                break
            admitted += 1
            have = min(now, final)
            for i in range(longest):
                state = "holds a token" if i < have else "reserved, will be filled" if i < final else "never filled"
                cells[start + i] = (f"request {number + 1}", state)
        return cells, admitted
    blocks = SLOTS // block
    taken = 0
    held: dict[int, int] = {}
    for token in range(1, now + 1):
        for number, final in enumerate(ANSWERS):
            if token > final:
                continue
            if (token - 1) % block == 0:
                if taken == blocks:
                    continue
                held[number] = taken
                taken += 1
                for i in range(block):
                    will = token + i <= final
                    cells[held[number] * block + i] = (
                        f"request {number + 1}",
                        "reserved, will be filled" if will else "never filled",
                    )
            cells[held[number] * block + (token - 1) % block] = (f"request {number + 1}", "holds a token")
    return cells, len(held)


def kept(context: int, budget: int, prompt: int) -> dict[str, Sequence[str]]:
    """What is still cached of `context` tokens, `prompt` of them the prompt, under each retention policy.

    Which tokens are heavy hitters depends on the model's attention; here they are spread evenly, as an illustration.
    """
    sinks, recent = min(4, budget), budget - min(4, budget)
    half = budget // 2

    def window(i: int) -> str:
        return "kept: sink" if i < sinks else "kept: recent" if i >= context - recent else "dropped"

    old = max(context - half, 0)
    hitters = _evenly(old, min(budget - half, old))
    chosen = _evenly(max(prompt - 2, 0), max(min(budget, prompt) - 2, 0))

    def heavy(i: int) -> str:
        return "kept: recent" if i >= context - half else "kept: heavy hitter" if i in hitters else "dropped"

    def snap(i: int) -> str:
        return "kept: recent" if i >= prompt - 2 else "kept: chosen from the prompt" if i in chosen else "dropped"

    rows = {"full": lambda i: "kept: full", "streaming": window, "h2o": heavy, "snapkv": snap}
    return {name: [why(i) for i in range(context)] for name, why in rows.items()}


def _evenly(room: int, count: int) -> set[int]:
    return {i * room // count for i in range(count)} if count else set()
