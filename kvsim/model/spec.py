"""`ModelSpec`: the shape of a decoder-only transformer, and what follows from it: parameters, bytes, matrix products.

Per-GPU numbers follow vLLM's (Megatron's) partition: heads and MLP columns are split over `tp` GPUs, KV heads are
replicated once `tp` exceeds them, the vocabulary is split, norms and routers are replicated; `ep` > 1 spreads whole
experts over `ep` GPUs instead of splitting each; `pp` gives each stage an equal share of the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvsim.errors import InputError
from kvsim.precision import canonical, kv_bytes, matrix_bytes

Kind = Literal["embedding", "head", "dense", "router", "expert", "vector"]
Rows = Literal["all", "sampled"]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers with the same attention. Counts are of the whole model; `heads_per_gpu` and so on apply TP."""

    window: int
    """tokens a token attends, its own included; 0: all of them (full attention)"""
    layers: int
    heads: int
    kv_heads: int
    """heads that are cached; MLA: 1"""
    head_dim: int
    """channels of a cached key; MLA: kv_lora_rank + rope_dim (576)"""
    value_dim: int
    """channels of a cached value; MLA: kv_lora_rank (512), a part of the key's row"""
    latent: bool = False
    """MLA: one row a token serves as key and value of every head"""
    index_dim: int = 0
    """channels of the extra key a token has for sparse attention's indexer (DeepSeek-V3.2), cached in fp8"""

    def heads_per_gpu(self, tp: int) -> int:
        return -(-self.heads // tp)

    def kv_heads_per_gpu(self, tp: int) -> int:
        return max(1, -(-self.kv_heads // tp))

    def kv_bytes_per_token(self, dtype: str, tp: int = 1) -> int:
        """Bytes that one token takes in ONE of these layers on one GPU."""
        # vLLM stores an index key as fp8 with one fp32 scale for 128 channels
        index = self.index_dim + 4 * -(-self.index_dim // 128) if self.index_dim else 0
        return kv_bytes(dtype, self.kv_heads_per_gpu(tp), self.head_dim, self.value_dim, self.latent) + index


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, section 2.1). Dimensions in channels."""

    q_lora_rank: int
    """0: queries are projected in one product"""
    kv_lora_rank: int
    nope_dim: int
    """of a head's query and expanded key, without position"""
    rope_dim: int
    value_dim: int
    """of a head's expanded value"""
    index_heads: int = 0
    index_dim: int = 0

    @property
    def query_dim(self) -> int:
        """Of a head's query and expanded key (192 for DeepSeek): prefill runs on these."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts in `layers` of the layers; the others have one MLP of `ModelSpec.inter`."""

    layers: int
    experts: int
    top_k: int
    inter: int
    """of one routed expert"""
    shared_inter: int = 0
    """of all shared experts together (they run for every token); 0: none"""

    def experts_per_gpu(self, ep: int = 1) -> int:
        return -(-self.experts // ep)


@dataclass(frozen=True, slots=True)
class Matrix:
    """`count` equal weight matrices of one GPU: outputs n, inputs k."""

    name: str
    n: int
    k: int
    count: int
    """instances on the GPU: layers × experts"""
    kind: Kind


@dataclass(frozen=True, slots=True)
class LinearOp:
    """A matrix product of one step on one GPU: Y[m, n] = X[m, k] · W[k, n], in `layers` layers.

    `rows` says what m is: "all": every token of the step; "sampled": the rows that sample a token (lm_head).
    kind "dense", "router" and "head": m as it is. kind "expert": one expert of `experts` held by this GPU; a step of m
    tokens sends m · top_k rows to the experts, spread over all of them (see `ModelSpec.moe`).
    """

    name: str
    n: int
    k: int
    layers: int
    rows: Rows
    kind: Kind
    experts: int = 1


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer's shape. Made by `load_model` or `from_config`, not by hand."""

    name: str
    family: str
    """Hugging Face model_type"""
    layers: int
    hidden: int
    vocab: int
    max_model_len: int
    attention_groups: tuple[AttentionGroup, ...]
    """full attention first, then windows, longest first"""
    inter: int
    """of the dense MLP"""
    gated: bool = True
    """MLP has a gate (SwiGLU): three matrices instead of two"""
    mla: Mla | None = None
    moe: Moe | None = None
    tied_embeddings: bool = False
    positions: int = 0
    """learned position embeddings; 0: none (rotary, ALiBi)"""
    embedding_dim: int = 0
    """where it differs from hidden (OPT-350m); 0: hidden"""
    layer_vectors: int = 0
    """parameters of one layer's norms, biases and sinks"""
    expert_vectors: int = 0
    """biases of one routed expert"""
    other_vectors: int = 0
    """final norm, head bias, embedding norm"""
    other_parameters: int = 0
    """resident, but in no step of text: the vision tower of a multimodal checkpoint"""
    rotary_channels: int = 0
    """channels of the rotary table an engine keeps on the GPU (max_model_len rows, 16-bit)"""
    key_is_value: bool = False
    """full-attention layers use one projection for keys and values (Gemma 4)"""
    weights_dtype: str = "bf16"
    """of the checkpoint: what is served unless another one is asked for"""
    provenance: str = ""

    @property
    def heads(self) -> int:
        return self.attention_groups[0].heads

    @property
    def kv_heads(self) -> int:
        """Cached heads (MLA: 1)."""
        return self.attention_groups[0].kv_heads

    @property
    def head_dim(self) -> int:
        """Channels of a query head (MLA: nope + rope)."""
        return self.mla.query_dim if self.mla else self.attention_groups[0].head_dim

    @property
    def value_dim(self) -> int:
        """Channels of a head's attention output."""
        return self.mla.value_dim if self.mla else self.attention_groups[0].value_dim

    # ---- KV cache

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1, pp: int = 1) -> int:
        """Bytes one token takes on one GPU over all its layers, as if every layer attended everything."""
        return sum(self.group_bytes_per_token(dtype, tp, pp))

    def group_bytes_per_token(self, dtype: str = "bf16", tp: int = 1, pp: int = 1) -> tuple[int, ...]:
        """The same for each attention group, over the group's layers."""
        return tuple(-(-g.layers // pp) * g.kv_bytes_per_token(dtype, tp) for g in self.attention_groups)

    def kv_bytes_per_request(self, tokens: int, dtype: str = "bf16", tp: int = 1, pp: int = 1) -> int:
        """Bytes a request of `tokens` tokens holds on one GPU, windows applied, without page rounding."""
        sizes = self.group_bytes_per_token(dtype, tp, pp)
        return sum(
            size * (min(tokens, group.window) if group.window else tokens)
            for size, group in zip(sizes, self.attention_groups, strict=True)
        )

    # ---- weights

    @property
    def parameters(self) -> int:
        """All parameters; tied embeddings count once."""
        return sum(m.n * m.k * m.count for m in self.matrices())

    @property
    def active_parameters(self) -> int:
        """Parameters a token meets: all but the routed experts it isn't sent to (embeddings are counted)."""
        if self.moe is None:
            return self.parameters - self.other_parameters
        idle = self.moe.experts - self.moe.top_k
        experts = sum(m.n * m.k * m.count for m in self.matrices() if m.kind == "expert")
        experts += self.moe.layers * self.moe.experts * self.expert_vectors
        return self.parameters - self.other_parameters - experts * idle // self.moe.experts

    def weights_bytes(
        self, dtype: str | None = None, tp: int = 1, pp: int = 1, ep: int = 1, expert_pad: tuple[int, int] = (1, 1)
    ) -> int:
        """Bytes of the weights on one GPU (of the heaviest pipeline stage).

        Embedding, head, router, norms and biases stay 16-bit when the rest is quantised; mxfp4 quantises only the
        routed experts of a mixture. `expert_pad`: (hidden, inter) are padded to multiples of these in the experts
        (what an engine's mxfp4 kernels ask for).
        """
        dtype = canonical(dtype or self.weights_dtype)
        plain = dtype if dtype in ("fp32", "bf16", "fp16") else "bf16"
        small = plain if dtype == "mxfp4" and self.moe else dtype
        of = {"expert": dtype, "dense": small}
        total = 0
        for m in self.matrices(tp, pp, ep):
            n, k = m.n, m.k
            if m.kind == "expert":
                hidden, inter = expert_pad
                rows = hidden if m.name == "expert_down" else (2 if self.gated else 1) * inter
                columns = inter if m.name == "expert_down" else hidden
                n, k = -(-n // rows) * rows, -(-k // columns) * columns
            total += m.count * matrix_bytes(n, k, of.get(m.kind, plain))
        return total

    def linear_ops(self, tp: int = 1, ep: int = 1) -> tuple[LinearOp, ...]:
        """The matrix products of one step on one GPU, in the order they run. See `LinearOp`.

        MLA's `kv_b` stands for the products with its two absorbed halves too: in decode every head multiplies its query
        by W_UK and its output by W_UV, which are the same weights and the same FLOPs.
        """
        ops = []
        for m in self.matrices(tp, 1, ep):
            if m.kind in ("embedding", "vector"):
                if not (m.name == "embedding" and self.tied_embeddings):
                    continue
                ops.append(LinearOp("lm_head", m.n, m.k, 1, "sampled", "head"))
            elif m.kind == "head":
                ops.append(LinearOp("lm_head", m.n, m.k, 1, "sampled", "head"))
            elif m.kind == "expert" and self.moe:
                held = self.moe.experts_per_gpu(ep)
                ops.append(LinearOp(m.name, m.n, m.k, m.count // held, "all", "expert", held))
            else:
                ops.append(LinearOp(m.name, m.n, m.k, m.count, "all", m.kind))
        return tuple(sorted(ops, key=lambda op: op.kind == "head"))

    def matrices(self, tp: int = 1, pp: int = 1, ep: int = 1) -> tuple[Matrix, ...]:
        """Every weight of one GPU. Parameters, bytes and matrix products all follow from this list."""
        from kvsim.model.matrices import matrices

        self.check_parallel(tp, pp, ep)
        return matrices(self, tp, pp, ep)

    def check_parallel(self, tp: int = 1, pp: int = 1, ep: int = 1) -> None:
        """Raise InputError unless the model can be split that way."""
        heads = {g.heads for g in self.attention_groups}
        if tp < 1 or any(h % tp for h in heads):
            raise InputError(f"--tp {tp}: the {self.heads} attention heads of {self.name} can't be split evenly over "
                             f"it; use a divisor of {self.heads}")
        for group in self.attention_groups:
            if not group.latent and group.kv_heads % tp and tp % group.kv_heads:
                raise InputError(f"--tp {tp}: the {group.kv_heads} KV heads of {self.name} can neither be split over "
                                 f"it nor repeated; use a divisor or a multiple of {group.kv_heads}")
        if not 1 <= pp <= self.layers:
            raise InputError(f"--pp {pp}: {self.name} has {self.layers} layers; use 1 to {self.layers} stages")
        if ep < 1 or (ep > 1 and (self.moe is None or ep > self.moe.experts)):
            held = f"has {self.moe.experts} experts" if self.moe else "has no experts"
            raise InputError(f"expert parallelism {ep}: {self.name} {held}; use 1"
                             + (f" to {self.moe.experts}" if self.moe else ""))
