"""The weights of one GPU, from which parameters, bytes and matrix products all follow."""

from __future__ import annotations

from kvsim.model.spec import AttentionGroup, Kind, Matrix, ModelSpec, Moe


def matrices(spec: ModelSpec, tp: int, pp: int, ep: int) -> tuple[Matrix, ...]:
    """Every weight of one GPU, in the order of a step. With pp > 1 of a stage that holds the most."""
    layers = -(-spec.layers // pp)
    vocab = -(-spec.vocab // tp)
    width = spec.embedding_dim or spec.hidden
    result = [Matrix("embedding", vocab, width, 1, "embedding")]
    if spec.positions:
        result.append(Matrix("positions", spec.positions, spec.hidden, 1, "embedding"))
    if width != spec.hidden:
        result += [Matrix("project_in", spec.hidden, width, 1, "dense"),
                   Matrix("project_out", width, spec.hidden, 1, "dense")]
    for group in spec.attention_groups:
        held = -(-group.layers // pp)
        result += _latent(spec, group, held, tp) if spec.mla else _attention(spec, group, held, tp)
    result = _merged(result)
    moe_layers = min(spec.moe.layers, layers) if spec.moe else 0
    if layers > moe_layers:
        result += _mlp(spec, "", -(-spec.inter // tp), layers - moe_layers)
    if spec.moe:
        result += _experts(spec, spec.moe, moe_layers, tp, ep)
    result.append(Matrix("layer_vectors", spec.layer_vectors, 1, layers, "vector"))
    result.append(Matrix("other_vectors", spec.other_vectors, 1, 1, "vector"))
    result.append(Matrix("other_parameters", spec.other_parameters, 1, 1, "vector"))
    if not spec.tied_embeddings and pp == 1:  # with pp > 1 no stage has both embedding and head
        result.append(Matrix("lm_head", vocab, width, 1, "head"))
    return tuple(m for m in result if m.n and m.count)


def _merged(found: list[Matrix]) -> list[Matrix]:
    """Equal matrices of several attention groups as one entry."""
    counts: dict[tuple[str, int, int, Kind], int] = {}
    for m in found:
        key = (m.name, m.n, m.k, m.kind)
        counts[key] = counts.get(key, 0) + m.count
    return [Matrix(name, n, k, count, kind) for (name, n, k, kind), count in counts.items()]


def _attention(spec: ModelSpec, group: AttentionGroup, layers: int, tp: int) -> list[Matrix]:
    queries = group.heads_per_gpu(tp) * group.head_dim
    one_projection = spec.key_is_value and not group.window
    cached = group.head_dim + (0 if one_projection else group.value_dim)
    return [
        Matrix("qkv", queries + group.kv_heads_per_gpu(tp) * cached, spec.hidden, layers, "dense"),
        Matrix("o", spec.hidden, group.heads_per_gpu(tp) * group.value_dim, layers, "dense"),
    ]


def _latent(spec: ModelSpec, group: AttentionGroup, layers: int, tp: int) -> list[Matrix]:
    """MLA: the down projections are replicated, what expands to heads is split. vLLM fuses q_a with kv_a."""
    mla = spec.mla
    assert mla is not None
    heads = group.heads_per_gpu(tp)
    cached = mla.kv_lora_rank + mla.rope_dim
    if mla.q_lora_rank:
        down = [Matrix("qkv_a", mla.q_lora_rank + cached, spec.hidden, layers, "dense"),
                Matrix("q_b", heads * mla.query_dim, mla.q_lora_rank, layers, "dense")]
    else:
        down = [Matrix("q", heads * mla.query_dim, spec.hidden, layers, "dense"),
                Matrix("kv_a", cached, spec.hidden, layers, "dense")]
    if mla.index_heads:
        down += [Matrix("index_q", mla.index_heads * mla.index_dim, mla.q_lora_rank or spec.hidden, layers, "dense"),
                 Matrix("index_k", mla.index_dim + mla.index_heads, spec.hidden, layers, "dense")]
    return [
        *down,
        Matrix("kv_b", heads * (mla.nope_dim + mla.value_dim), mla.kv_lora_rank, layers, "dense"),
        Matrix("o", spec.hidden, heads * mla.value_dim, layers, "dense"),
    ]


def _mlp(spec: ModelSpec, prefix: str, inter: int, layers: int) -> list[Matrix]:
    first = Matrix(prefix + "gate_up", 2 * inter, spec.hidden, layers, "dense") if spec.gated else Matrix(
        prefix + "up", inter, spec.hidden, layers, "dense")
    return [first, Matrix(prefix + "down", spec.hidden, inter, layers, "dense")]


def _experts(spec: ModelSpec, moe: Moe, layers: int, tp: int, ep: int) -> list[Matrix]:
    held = moe.experts_per_gpu(ep)
    inter = moe.inter if ep > 1 else -(-moe.inter // tp)
    result = [Matrix("router", moe.experts, spec.hidden, layers, "router")]
    if moe.shared_inter:
        result += _mlp(spec, "shared_", -(-moe.shared_inter // tp), layers)
    return [
        *result,
        Matrix("expert_gate_up" if spec.gated else "expert_up", (2 if spec.gated else 1) * inter, spec.hidden,
               layers * held, "expert"),
        Matrix("expert_down", spec.hidden, inter, layers * held, "expert"),
        Matrix("expert_vectors", spec.expert_vectors, 1, layers * held, "vector"),
    ]
