"""What a stream loses because text is out of sight, and not because of how a window is cached.

StreamingLLM's own baseline: a model that sees as many tokens as the window holds and computes them anew, without a
cache. It is scored on the tokens of `kvsim accuracy`'s streams beside the full context, 256 tokens at a time: their
first one sees 1/16 less than the window, their last one 1/16 more. Two minutes of a core for each piece:

    python benchmarks/recomputed_window.py 4
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import replace

import torch
import torch.nn.functional as F
from kvsim_calibration.accuracy.bootstrap import mean
from kvsim_calibration.accuracy.caches import Prefill
from kvsim_calibration.accuracy.items import FULL, items
from kvsim_calibration.accuracy.policies import windows
from kvsim_calibration.accuracy.text import book, documentation
from kvsim_calibration.accuracy.weights import load
from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.model import Llama

CONTEXT = max(FULL.contexts)
WINDOW, BLOCK = CONTEXT // 4, 256


def nll(model: Llama, tokens: torch.Tensor, scored: int, block: int, seen: int) -> float:
    """Negative log-likelihood of the last `scored` tokens, nats; each `block` of them in a forward over the `seen`
    tokens before its last."""
    total = 0.0
    for end in range(len(tokens) - 1 - scored + block, len(tokens), block):
        given = tokens[max(end - seen, 0) : end]
        logits = model(given, Batch([0], [len(given)], [0]), Prefill(observe=0, scored=False), slice(-block, None))
        total += float(F.cross_entropy(logits.float(), tokens[end - block + 1 : end + 1], reduction="sum"))
    return total


def main(pieces: int) -> None:
    torch.set_num_threads(1)
    loaded = load(None)
    work = items(loaded, [documentation(), book()], replace(FULL, streams=pieces, needles=1), windows(FULL.context))
    lost: dict[str, list[float]] = defaultdict(list)
    for item in work:
        if item.key["kind"] == "stream" and item.key["context"] == CONTEXT:
            tokens = torch.tensor(item.tokens)
            full = nll(loaded.model, tokens, item.scored, item.scored, CONTEXT)
            more = nll(loaded.model, tokens, item.scored, BLOCK, WINDOW + BLOCK // 2) - full
            lost[item.key["text"]].append(more)
            print(f"{item.key['text']}, piece {item.key['item']}: {math.expm1(more / item.scored):+.2%}", flush=True)
    for text, each in lost.items():
        change, interval = mean(each, [WINDOW] * len(each))
        said = [f"{math.expm1(end):+.2%}" for end in interval or ()]
        print(f"{text}: perplexity {math.expm1(change):+.2%} {said} seeing {WINDOW:,} of {CONTEXT:,} tokens")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else FULL.streams)
