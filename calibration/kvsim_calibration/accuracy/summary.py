"""Rows of texts and needles → one line a policy: what it saves, what it costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvsim.cache.retention import FULL, NO_CAP
from kvsim_calibration.accuracy.bootstrap import mean
from kvsim_calibration.accuracy.items import Size
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy, retention_text, windows
from kvsim_calibration.engine.model import Dims

Row = dict[str, Any]


def summarize(rows: Sequence[Row], policies: Sequence[Policy], size: Size, dims: Dims) -> list[Row]:
    """The full cache first, then the policies, each with these facts:

    | key | is |
    |---|---|
    | budget | tokens that are kept of a long prompt; null for all |
    | bytes_per_token | mean bytes that the cache holds for a token of the text so far, scales included |
    | tokens_kept | mean share of the tokens so far that the cache holds |
    | share | bytes_per_token ÷ that of the full bf16 cache |
    | perplexity, perplexity_change | exp(mean nll), and its relative change; with the 95 % interval over chunks |
    | top1_agreement | share of tokens with the full cache's most likely successor |
    | kl | mean Kullback–Leibler divergence from the full cache, nats a token |
    | attention_error | relative error of attention outputs by layer, mean over chunks |
    | needle | facts found, asked for, and the same at each depth |
    """
    return [_line(rows, policy, size, dims) for policy in (FULL_CACHE, *policies)]


def by_context(rows: Sequence[Row], size: Size) -> list[Row]:
    """The window at a quarter of several contexts, on the same decoded tokens, shortest context first; [] where only
    one was measured. A line has the context's tokens, and of a policy's facts those that texts give."""
    shared = {row["item"] for row in rows if row["kind"] == "text" and row["context"] in size.others}
    same = [row for row in rows if row["item"] in shared]
    if not same:
        return []
    return [{"context": context, **_texts(same, policy, context)}
            for context in sorted((size.context, *size.others)) for policy in windows(context)]  # fmt: skip


def _line(rows: Sequence[Row], policy: Policy, size: Size, dims: Dims) -> Row:
    kept = policy.kept(size.prompt, size.steps)
    full = FULL_CACHE.token_bytes(dims.layers, dims.kv_heads, dims.head_dim)
    held = kept * policy.token_bytes(dims.layers, dims.kv_heads, dims.head_dim)
    texts = _of(rows, policy, "text", size.context)
    layers = [sum(errors) / len(texts) for errors in zip(*(row["attention_error"] for row in texts), strict=True)]
    return {
        **_texts(rows, policy, size.context), "tokens_kept": kept, "bytes_per_token": held, "share": held / full,
        "attention_error": {"mean": sum(layers) / len(layers), "layers": layers},
        "needle": _needle(_of(rows, policy, "needle", size.context)),
    }  # fmt: skip


def _texts(rows: Sequence[Row], policy: Policy, context: int) -> Row:
    """What a policy is, and what it did to texts beside the full cache."""
    texts = _of(rows, policy, "text", context)
    base = {row["item"]: row for row in _of(rows, FULL_CACHE, "text", context)}
    tokens = [row["tokens"] for row in texts]
    nll, _ = mean([row["nll"] for row in texts], tokens)
    change, change_interval = mean([row["nll"] - base[row["item"]]["nll"] for row in texts], tokens)
    agreement, agreement_interval = mean([row["agree"] for row in texts], tokens)
    kl, kl_interval = mean([row["kl"] for row in texts], tokens)
    return {
        "policy": policy.name, "precision": policy.precision, "retention": retention_text(policy.retention),
        "texts": len(texts), "budget": None if policy.retention == FULL else policy.retention.kept(NO_CAP),
        "perplexity": math.exp(nll),
        "perplexity_change": math.expm1(change),
        "perplexity_change_interval": change_interval and [math.expm1(end) for end in change_interval],
        "top1_agreement": agreement, "top1_agreement_interval": agreement_interval,
        "kl": kl, "kl_interval": kl_interval,
    }  # fmt: skip


def _needle(rows: Sequence[Row]) -> Row:
    asked = Counter(row["depth"] for row in rows)
    found = Counter(row["depth"] for row in rows if row["exact"])
    return {"found": found.total(), "asked": asked.total(),
            "by_depth": [{"depth": depth, "found": found[depth], "asked": asked[depth]} for depth in sorted(asked)]}


def _of(rows: Sequence[Row], policy: Policy, kind: str, context: int) -> list[Row]:
    asked = policy.name, kind, context
    return sorted((row for row in rows if (row["policy"], row["kind"], row["context"]) == asked),
                  key=lambda row: int(row["item"]))  # fmt: skip
