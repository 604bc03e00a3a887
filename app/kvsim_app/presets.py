"""Starting points: traffic × model × device × policies, each with the question that it answers."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.scenario import make
from kvsim_app.selection import Selection


@dataclass(frozen=True)
class Preset:
    """A card on the first page and an entry of the sidebar."""

    question: str
    about: str
    scenario: dict[str, object]
    policies: tuple[str, ...]

    @property
    def selection(self) -> Selection:
        return Selection(make(self.scenario), self.policies)


PRESETS = {
    "Why page the cache?": Preset(
        "Why page the cache?",
        "Five minutes of chat, Llama 3.1 8B on one L40S: room kept for 16k tokens a request, against blocks.",
        {"trace": "sample", "duration": "5m", "model": "llama-3.1-8b", "device": "l40s", "max_model_len": 16384},
        ("contiguous", "paged", "paged-prefix"),
    ),
    "Does quantizing help?": Preset(
        "Does quantizing help?",
        "The same chat on a small L4, whose pool is tight: 16, 8 and 4 bits a number.",
        {"trace": "sample", "duration": "5m", "model": "llama-3.1-8b", "device": "l4", "max_model_len": 16384},
        ("paged", "paged-int8", "paged-int4"),
    ),
    "Is sharing prefixes worth it?": Preset(
        "Is sharing prefixes worth it?",
        "Long conversations as in Mooncake's trace, 70B on four H100: sharing on the GPU, and with host memory too.",
        {"trace": "synth:mooncake-chat", "duration": "5m", "model": "llama-3.1-70b", "device": "h100-sxm", "tp": 4},
        ("paged", "paged-prefix", "paged-offload"),
    ),
    "What does eviction cost?": Preset(
        "What does eviction cost?",
        "Dropping tokens keeps the cache small: a sliding window with sinks, heavy hitters, compressed prompts.",
        {"trace": "synth:mooncake-chat", "duration": "2m", "model": "llama-3.1-8b", "device": "h100-sxm"},
        ("paged", "streaming", "h2o", "snapkv"),
    ),
}
