"""What a config.json leaves to the code of its family: gates, biases, norms, tied embeddings, KV heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.model.reader import Reader
from kvsim.model.spec import Moe


@dataclass(frozen=True, slots=True)
class Family:
    """Traits of one model_type. Norms are counted in vectors of `hidden`: a LayerNorm with bias is two."""

    gated: bool = True
    tied: bool = False
    """tie_word_embeddings where the config doesn't say"""
    learned: bool = False
    """learned position embeddings"""
    position_offset: int = 0
    alibi: bool = False
    norms: int = 2
    final_norms: int = 1
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    sinks: bool = False
    """one learned attention sink a head"""
    qk_norm: str = ""
    """"head": one norm of head_dim each for q and k; "all": over all heads"""
    dense_only: bool = False
    halves_inter: bool = False
    """intermediate_size counts gate and up together"""
    kv: str = ""
    """how many KV heads: "falcon", "mqa", "chatglm", or num_key_value_heads"""

    def kv_heads(self, read: Reader, heads: int) -> int:
        config = read.config
        if self.kv == "falcon" and not config.get("new_decoder_architecture"):
            return 1 if config.get("multi_query", True) else read.count("num_kv_heads", "n_head_kv", default=heads)
        if self.kv == "mqa" and config.get("multi_query", True):
            return 1
        if self.kv == "chatglm" and not config.get("multi_query_attention"):
            return heads
        return read.count("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num",
                          default=heads)  # fmt: skip

    def layer_vectors(self, read: Reader, hidden: int, heads: int, kv_heads: int, head_dim: int, inter: int) -> int:
        """Parameters of one layer's norms, biases and sinks; `inter` is 0 where the layers have experts."""
        config = read.config
        bias = bool(config.get("attention_bias"))
        queries, cached = heads * head_dim, 2 * kv_heads * head_dim
        norms = self.norms
        if self.kv == "falcon":
            norms = 4 if config.get("new_decoder_architecture") and config.get("num_ln_in_parallel_attn") != 1 else 2
        total = norms * hidden
        total += queries + cached if self.qkv_bias or bias or config.get("use_qkv_bias") else 0
        total += hidden if self.o_bias or (bias and not self.qkv_bias) else 0
        if inter and (self.mlp_bias or config.get("mlp_bias")):
            total += (2 * inter if self.gated else inter) + hidden
        if self.qk_norm == "head" or (self.qk_norm == "option" and config.get("use_qk_norm")):
            total += 2 * head_dim
        elif self.qk_norm == "all":
            total += queries + cached // 2
        total += heads if self.sinks else 0
        total += hidden if config.get("shared_expert_intermediate_size") else 0  # Qwen2 MoE gates its shared expert
        if self.router_bias:
            total += read.count("num_local_experts", "n_routed_experts", "num_experts", default=0)
        return total

    def expert_vectors(self, moe: Moe | None, hidden: int) -> int:
        return 2 * moe.inter + hidden if moe and self.expert_bias else 0

    def other_vectors(self, read: Reader, hidden: int) -> int:
        vocab = read.count("vocab_size", "padded_vocab_size")
        final = 0 if read.config.get("do_layer_norm_before") is False else self.final_norms  # OPT-350m norms after
        return final * hidden + (vocab if self.head_bias else 0)


_GPT = Family(gated=False, tied=True, learned=True, norms=4, final_norms=2, qkv_bias=True, o_bias=True, mlp_bias=True)
_COHERE = Family(tied=True, norms=1, qk_norm="")
_DEEPSEEK = Family(router_bias=True)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "mistral3", "ministral3", "mixtral", "internlm2", "yi", "phi3", "phimoe",
                     "granite", "granitemoe", "smollm3", "seed_oss", "baichuan", "deepseek_v2", "dbrx", "minimax_m2",
                     "llama4", "llama4_text", "olmo"), Family()),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"), Family(qkv_bias=True)),
    **dict.fromkeys(("qwen3", "qwen3_moe", "exaone4", "qwen3_vl_text", "qwen3_vl_moe_text"), Family(qk_norm="head")),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2"), _DEEPSEEK),
    "glm4_moe": Family(qkv_bias=True, qk_norm="option", router_bias=True),
    "qwen": Family(qkv_bias=True, halves_inter=True),
    "internlm": Family(qkv_bias=True, o_bias=True),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4),
    **dict.fromkeys(("gemma3", "gemma3_text", "gemma4", "gemma4_text"), Family(tied=True, norms=4, qk_norm="head")),
    "gpt_oss": Family(qkv_bias=True, o_bias=True, expert_bias=True, router_bias=True, sinks=True),
    "olmo2": Family(qk_norm="all"),
    "olmoe": Family(qk_norm="all"),
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "chatglm": Family(kv="chatglm", qkv_bias=True),
    "phi": Family(gated=False, norms=2, final_norms=2, qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True),
    "opt": Family(gated=False, tied=True, learned=True, position_offset=2, norms=4, final_norms=2, qkv_bias=True,
                  o_bias=True, mlp_bias=True),
    "gpt2": _GPT,
    "gpt_bigcode": Family(gated=False, tied=True, learned=True, norms=4, final_norms=2, qkv_bias=True, o_bias=True,
                          mlp_bias=True, kv="mqa"),
    "gpt_neox": Family(gated=False, norms=4, final_norms=2, qkv_bias=True, o_bias=True, mlp_bias=True),
    "gptj": Family(gated=False, norms=2, final_norms=2, mlp_bias=True, head_bias=True),
    "bloom": Family(gated=False, tied=True, alibi=True, norms=4, final_norms=4, qkv_bias=True, o_bias=True,
                    mlp_bias=True),
    "falcon": Family(gated=False, final_norms=2, kv="falcon"),
    "mpt": Family(gated=False, tied=True, alibi=True),
    "starcoder2": Family(gated=False, tied=True, norms=4, final_norms=2, qkv_bias=True, o_bias=True, mlp_bias=True),
    "stablelm": Family(norms=4, final_norms=2),
    "nemotron": Family(gated=False, norms=4, final_norms=2),
}  # fmt: skip


DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "max_position_embeddings": 131072, "sliding_window": 4096, "rope_local_base_freq": 10000.0},
    "RefinedWeb": {"model_type": "falcon", "new_decoder_architecture": True},
    "RefinedWebModel": {"model_type": "falcon", "new_decoder_architecture": False},
}  # fmt: skip
"""What files of a family leave to the defaults of its class, and what older names of a model_type stand for."""


def traits(config: dict[str, Any]) -> tuple[Family, bool]:
    """The family of a config, and whether it is known; an unknown one is taken as Llama-like."""
    kind = str(config.get("model_type", ""))
    return FAMILIES.get(kind, Family()), kind in FAMILIES
