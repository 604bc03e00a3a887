"""Synthetic traffic by name. Every number says where it comes from; what nobody published is called chosen.

Quantiles are those of `kvsim.trace.lengths.QUANTILES` (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100 %).
"""

from __future__ import annotations

from kvsim.trace.arrivals import Arrivals
from kvsim.trace.lengths import Empirical, Lognormal
from kvsim.trace.synth import SynthSpec

_AZURE_CHAT_PROMPTS = Empirical((2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050))
_AZURE_CHAT_ANSWERS = Empirical((7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000))
_SHAREGPT_MESSAGES = Empirical((1, 2, 7, 9, 16, 35, 143, 761, 1423, 2862, 3973))
_SHAREGPT_ANSWERS = Empirical((3, 10, 23, 44, 136, 286, 446, 681, 839, 1000, 1734))
_RAGPULSE_GAPS = Lognormal(44, 1.43)
_AZURE = "Azure LLM inference trace 2023 (Azure/AzurePublicDataset, CC-BY-4.0)"
_WILDCHAT_TURNS = 2.52

PRESETS: dict[str, SynthSpec] = {
    spec.name: spec
    for spec in (
        SynthSpec(
            name="azure-chat",
            source=f"rate, CV of gaps and lengths: {_AZURE}, chat; independent of each other (rank correlation 0.07)",
            arrivals=Arrivals("gamma", rate=5.53, cv=1.09),
            prompt=_AZURE_CHAT_PROMPTS,
            output=_AZURE_CHAT_ANSWERS,
        ),
        SynthSpec(
            name="azure-code",
            source=f"rate, lengths of bursts and of silences over 2 s, and lengths: {_AZURE}, code",
            arrivals=Arrivals("onoff", rate=2.57, on_s=9.0, off_s=27.1),
            prompt=Empirical((3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437)),
            output=Empirical((6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 1899)),
        ),
        SynthSpec(
            name="mooncake-chat",
            source="Mooncake conversation trace (kvcache-ai/Mooncake, Apache-2.0): rate, lengths, tokens and gaps of "
            "requests that go on from an earlier one, 1.63 requests a conversation, one first block for all; chosen: "
            "Poisson (the recorded times are quantised to 3 s)",
            arrivals=Arrivals("poisson", rate=3.40),
            prompt=Empirical((379, 382, 389, 452, 1794, 6397, 14855, 26855, 39038, 84888, 125683)),
            message=Empirical((1, 1, 38, 89, 213, 430, 3195, 9417, 14336, 26318, 94507)),
            output=Empirical((1, 3, 10, 24, 156, 350, 472, 597, 698, 1119, 2000)),
            system_tokens=512,
            turns=1.63,
            think_s=Lognormal(123, 1.07),
            max_context=128_000,
        ),
        SynthSpec(
            name="sharegpt",
            source="messages and answers: ShareGPT lengths (AKafakA/vidur_opt_scheduler, MIT); turns: WildChat "
            "(arXiv 2405.01470); think times: gaps within RAGPulse sessions (MIT); chosen: Poisson, 1 request/s",
            arrivals=Arrivals("poisson", rate=1.0),
            prompt=_SHAREGPT_MESSAGES,
            message=_SHAREGPT_MESSAGES,
            output=_SHAREGPT_ANSWERS,
            turns=_WILDCHAT_TURNS,
            think_s=_RAGPULSE_GAPS,
            max_context=32_768,
        ),
        SynthSpec(
            name="chat",
            source=f"conversations that begin like {_AZURE}, chat, answers from there; further messages: ShareGPT "
            "lengths; turns: WildChat (arXiv 2405.01470); think times: gaps within RAGPulse sessions (MIT); chosen: "
            "2.5 requests/s, three system prompts of 256 tokens",
            arrivals=Arrivals("gamma", rate=2.5, cv=1.09),
            prompt=_AZURE_CHAT_PROMPTS,
            message=_SHAREGPT_MESSAGES,
            output=_AZURE_CHAT_ANSWERS,
            system_tokens=256,
            system_prompts=3,
            turns=_WILDCHAT_TURNS,
            think_s=_RAGPULSE_GAPS,
            max_context=32_768,
        ),
    )
}
