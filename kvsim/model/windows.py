"""How far each layer attends: 0 for everything, otherwise a window in tokens."""

from __future__ import annotations

from typing import Any

from kvsim.errors import InputError


def windows(config: dict[str, Any], layers: int, max_len: int, where: str) -> list[int]:
    """The window of every layer. A window that covers the longest context is full attention.

    Llama 4's chunked layers attend within their chunk of 8192 tokens: taken as a window of that size, which is their
    upper bound.
    """
    found = _windows(config, layers, where)
    return [0 if window >= max_len else window for window in found]


def _windows(config: dict[str, Any], layers: int, where: str) -> list[int]:
    kind = str(config.get("model_type", ""))
    window = config.get("sliding_window") or 0
    chunk = config.get("attention_chunk_size") or 0
    for name, value in (("sliding_window", window), ("attention_chunk_size", chunk)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{where}: {name} is {value!r}; it must be a number of tokens, or null")
    types = config.get("layer_types")
    if types and config.get("use_sliding_window") is not False:
        if len(types) != layers:
            raise InputError(f"{where}: layer_types has {len(types)} entries for {layers} layers")
        size = {"sliding_attention": window, "chunked_attention": chunk}
        return [size.get(name, 0) for name in types]
    if kind.startswith("llama4") and chunk:
        rotary = config.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
        return [chunk if with_rope else 0 for with_rope in rotary[:layers]]
    if not window or config.get("use_sliding_window") is False:
        return [0] * layers
    if kind in ("gemma2", "gpt_oss"):
        return [window if i % 2 == 0 else 0 for i in range(layers)]
    if config.get("use_sliding_window") and "max_window_layers" in config:  # Qwen2: the first layers attend everything
        return [window if i >= config["max_window_layers"] else 0 for i in range(layers)]
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: "LLLG"
        return [window if pattern[i % len(pattern)] == "L" else 0 for i in range(layers)]
    period = pattern or {"gemma3": 6, "gemma3_text": 6, "gemma4": 6, "gemma4_text": 6, "cohere2": 4}.get(kind, 0)
    return [0 if period and (i + 1) % period == 0 else window for i in range(layers)]
