"""Rows of texts, streams and needles → one line a policy: what it saves, what it costs."""

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


def streams(rows: Sequence[Row]) -> list[Row]:
    """What windows did to streams: for each text and context, shortest first, without sinks and with them. A line has
    the text's name, the context's tokens, what of the policy's facts streams give, and `tokens_kept` while it counted;
    the full cache's own perplexity is `full_perplexity`. `whole_change` is that of all tokens' perplexity, as
    StreamingLLM counts; the first quarter is the full cache's own. With the 95 % interval over pieces."""
    found = []
    measured = [row for row in rows if row["kind"] == "stream"]
    for text in dict.fromkeys(row["text"] for row in measured):
        same = [row for row in measured if row["text"] == text]
        for context in sorted({row["context"] for row in same}):
            for policy in windows(context):
                kept = policy.kept(context - context // 4, context // 4)
                whole, interval = _lost(same, policy, "stream", context, "nll_all", context)
                found.append({"text": text, "context": context, "tokens_kept": kept,
                              "full_perplexity": _texts(same, FULL_CACHE, "stream", context)["perplexity"],
                              "whole_change": whole, "whole_change_interval": interval,
                              **_texts(same, policy, "stream", context)})  # fmt: skip
    return found


def _line(rows: Sequence[Row], policy: Policy, size: Size, dims: Dims) -> Row:
    kept = policy.kept(size.prompt, size.steps)
    full = FULL_CACHE.token_bytes(dims.layers, dims.kv_heads, dims.head_dim)
    held = kept * policy.token_bytes(dims.layers, dims.kv_heads, dims.head_dim)
    texts = _of(rows, policy, "text", size.context)
    layers = [sum(errors) / len(texts) for errors in zip(*(row["attention_error"] for row in texts), strict=True)]
    return {
        **_texts(rows, policy, "text", size.context),
        "tokens_kept": kept, "bytes_per_token": held, "share": held / full,
        "attention_error": {"mean": sum(layers) / len(layers), "layers": layers},
        "needle": _needle(_of(rows, policy, "needle", size.context)),
    }  # fmt: skip


def _texts(rows: Sequence[Row], policy: Policy, kind: str, context: int) -> Row:
    """What a policy is, and what it did to texts, or streams, beside the full cache."""
    texts = _of(rows, policy, kind, context)
    tokens = [row["tokens"] for row in texts]
    nll, _ = mean([row["nll"] for row in texts], tokens)
    change, change_interval = _lost(rows, policy, kind, context)
    agreement, agreement_interval = mean([row["agree"] for row in texts], tokens)
    kl, kl_interval = mean([row["kl"] for row in texts], tokens)
    return {
        "policy": policy.name, "precision": policy.precision, "retention": retention_text(policy.retention),
        "texts": len(texts), "budget": None if policy.retention == FULL else policy.retention.kept(NO_CAP),
        "perplexity": math.exp(nll), "perplexity_change": change, "perplexity_change_interval": change_interval,
        "top1_agreement": agreement, "top1_agreement_interval": agreement_interval,
        "kl": kl, "kl_interval": kl_interval,
    }  # fmt: skip


def _lost(rows: Sequence[Row], policy: Policy, kind: str, context: int, nll: str = "nll",
          tokens: int = 0) -> tuple[float, list[float] | None]:  # fmt: skip
    """Relative change of perplexity beside the full cache, over `tokens` of each text (those that count), with its
    95 % interval."""
    texts = _of(rows, policy, kind, context)
    base = {row["item"]: row[nll] for row in _of(rows, FULL_CACHE, kind, context)}
    change, ends = mean([row[nll] - base[row["item"]] for row in texts], [tokens or row["tokens"] for row in texts])
    return math.expm1(change), ends and [math.expm1(end) for end in ends]


def _needle(rows: Sequence[Row]) -> Row:
    asked = Counter(row["depth"] for row in rows)
    found = Counter(row["depth"] for row in rows if row["exact"])
    return {"found": found.total(), "asked": asked.total(),
            "by_depth": [{"depth": depth, "found": found[depth], "asked": asked[depth]} for depth in sorted(asked)]}


def _of(rows: Sequence[Row], policy: Policy, kind: str, context: int) -> list[Row]:
    asked = policy.name, kind, context
    return sorted((row for row in rows if (row["policy"], row["kind"], row["context"]) == asked),
                  key=lambda row: int(row["item"]))  # fmt: skip
