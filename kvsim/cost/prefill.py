"""Prefill attention of one layer over a step's chunks: a curve for one kernel, its constants worked out once."""

from __future__ import annotations

from kvsim.cost.line import ragged_at
from kvsim.device import AttentionKey, Facts, PrefillCurve
from kvsim.device.forms import ACTIVATION_BYTES, causal_pairs, prefill_work

Chunks = tuple[tuple[int, int], ...]
"""(tokens computed, tokens of the same sequence already in the cache)"""


class PrefillRow:
    """`forms.prefill_ns` of `forms.prefill_work`, to the last bit, times the curve's ratio."""

    __slots__ = (
        "_byte_rate", "_context_bytes", "_fixed", "_flop_rate", "_flops_per_pair", "_key", "_per_chunk", "_plain",
        "_row_bytes", "_tile", "curve",
    )

    def __init__(self, curve: PrefillCurve, key: AttentionKey, facts: Facts) -> None:
        form = curve.form
        self.curve, self._key = curve, key
        self._plain = key.kernel != "naive" and not key.window
        self._fixed, self._per_chunk, self._tile = form.fixed_ns, form.per_chunk_ns, form.tile
        self._flops_per_pair = key.flops_per_pair
        self._row_bytes = key.heads * (key.head_dim + key.value_dim) * ACTIVATION_BYTES
        self._context_bytes = key.read_bytes_per_token
        self._flop_rate = form.flop_efficiency * facts.peak_flops("bf16")
        self._byte_rate = form.byte_efficiency * facts.bandwidth

    def ns(self, chunks: Chunks, tokens: int, attended: float) -> float:
        """ns of `chunks`, which are `tokens` tokens that attend `attended` tokens each on average."""
        flops = bytes_ = 0.0
        tile = self._tile
        for chunk, context in chunks:
            if self._plain:
                padded = -(-chunk // tile) * tile
                flops += (padded * context + padded * (padded + tile) // 2) * self._flops_per_pair
                bytes_ += chunk * self._row_bytes + (context + chunk) * self._context_bytes
            else:
                more_flops, more_bytes = prefill_work(self.curve.form, self._key, chunk, context)
                flops += more_flops
                bytes_ += more_bytes
        ns = self._fixed + self._per_chunk * len(chunks)
        ns = ns + flops * 1e9 / self._flop_rate + bytes_ * 1e9 / self._byte_rate
        table = self.curve.table
        return ns * (table.ratio[0][0] if table.flat else ragged_at(table, tokens, attended))


def extent(key: AttentionKey, chunks: Chunks) -> tuple[int, float]:
    """(tokens computed, attended tokens a computed token): the axes of a prefill table."""
    tokens = attended = 0
    for chunk, context in chunks:
        tokens += chunk
        attended += (
            causal_pairs(chunk, context, key.window) if key.window else chunk * context + chunk * (chunk + 1) // 2
        )
    return tokens, attended / tokens
