"""The named policies. A preset is a point on the axes of spec.py; another file may register more."""

from __future__ import annotations

from kvsim.cache.retention import HeavyHitter, SnapKV, Window
from kvsim.cache.spec import CacheSpec
from kvsim.cache.tier import Tier
from kvsim.registry import Registry
from kvsim.units import GIB

POLICIES: Registry[CacheSpec] = Registry("policy")

POLICIES("uncached")(
    CacheSpec(layout="none", about="no cache: every step recomputes the whole prefix")
)
POLICIES("contiguous")(
    CacheSpec(layout="reserve", about="max_model_len reserved up front for every request")
)
POLICIES("orca-oracle")(
    CacheSpec(layout="oracle", about="exactly the final length reserved up front (needs to know the future)")
)
POLICIES("buddy")(
    CacheSpec(layout="buddy", about="contiguous, a power of two of tokens")
)
POLICIES("best-fit")(
    CacheSpec(
        layout="best-fit", block_size=128,
        about="contiguous, grown 128 tokens at a time by reallocation into the smallest hole that fits",
    )
)
POLICIES("paged")(
    CacheSpec(about="fixed blocks, taken as a sequence grows")
)
POLICIES("paged-prefix")(
    CacheSpec(prefix="hash", about="paged, and equal prefixes share blocks")
)
POLICIES("radix")(
    CacheSpec(prefix="radix", about="a token tree shares prefixes (SGLang); comes with its scheduler")
)
POLICIES("paged-fp8")(
    CacheSpec(precision="fp8", about="paged, one byte a number")
)
POLICIES("paged-int8")(
    CacheSpec(precision="int8", about="paged, one byte a number and a scale a token and head")
)
POLICIES("paged-int4")(
    CacheSpec(precision="int4", about="paged, half a byte a number, scale and zero a group")
)
POLICIES("streaming")(
    CacheSpec(retention=Window(sinks=4, recent=1020), about="paged, 4 sink tokens and the latest 1,020")
)
POLICIES("h2o")(
    CacheSpec(retention=HeavyHitter(budget=1024, recent=512), about="paged, 512 recent tokens, 512 heavy hitters")
)
POLICIES("snapkv")(
    CacheSpec(retention=SnapKV(budget=1024, observe=32), about="paged, prompts cut to 1,024 tokens")
)
POLICIES("paged-offload")(
    CacheSpec(prefix="hash", tier=Tier(64 * GIB), about="paged-prefix, idle blocks move to 64 GiB of host memory")
)
