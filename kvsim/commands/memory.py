"""`kvsim memory`: where a GPU's bytes go, without a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.commands.output import show, show_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kvsim.engine_profile import EngineProfile
    from kvsim.memory import MemoryPlan

_PARTS = {
    "weights": ("weights", "█", "blue"),
    "activations": ("activations", "▓", "yellow"),
    "workspace": ("workspace", "█", "yellow"),
    "other": ("other", "▓", "magenta"),
    "unmanaged": ("unmanaged", "░", "bright_black"),
    "pool": ("KV pool", "█", "green"),
}
"""field of the plan → its name, mark and colour in the bar"""
_WIDTH = 78


def command(
    model: Annotated[str, typer.Option(help="Model by name, or a Hugging Face config.json")],
    device: Annotated[str, typer.Option(help="Device by name, or a profile JSON")],
    engine: Annotated[str, typer.Option(help="Whose rules: vllm-1, vllm-0@0.2, sglang …")] = "vllm-1",
    tp: Annotated[int, typer.Option(min=1, metavar="N", help="GPUs that share one copy of the model")] = 1,
    pp: Annotated[int, typer.Option(min=1, metavar="N", help="Pipeline stages")] = 1,
    ep: Annotated[int, typer.Option(min=1, metavar="N", help="GPUs that the experts are spread over")] = 1,
    weights_dtype: Annotated[str | None, typer.Option(help="bf16, fp8, int8, int4 …",
                                                      show_default="the model's")] = None,
    kv_dtype: Annotated[str, typer.Option(help="Precision of the cache: bf16, fp8, int8, int4")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Longest request",
                                                      show_default="the model's")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most sequences in a batch",
                                                     show_default="the engine's")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most tokens in a step",
                                                               show_default="the engine's")] = None,
    gpu_memory_utilization: Annotated[float | None, typer.Option(
        min=0.01, max=1, metavar="U", help="The engine's share of memory", show_default="the engine's")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Tokens a block",
                                                   show_default="the engine's")] = None,
    attention: Annotated[str, typer.Option(help="flash, or naive with an S×S matrix")] = "flash",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:  # fmt: skip
    """Where the bytes of one GPU go, how many KV blocks and tokens fit, and how many long requests at once.

    Example: kvsim memory --model llama-3.1-70b --device h100-sxm --tp 4 --kv-dtype fp8
    """
    from kvsim.device import load_device
    from kvsim.engine_profile import load_engine
    from kvsim.errors import InputError
    from kvsim.memory import plan_memory
    from kvsim.model import load_model

    if attention not in ("flash", "naive"):
        raise InputError(f"--attention {attention!r} is not known: use flash or naive")
    spec, gpu, rules = load_model(model), load_device(device), load_engine(engine)
    plan = plan_memory(
        spec, gpu, rules, tp=tp, pp=pp, ep=ep, weights_dtype=weights_dtype, kv_dtype=kv_dtype,
        max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=gpu_memory_utilization, block_size=block_size, attention=attention,
    ).require()  # fmt: skip
    if as_json:
        show_json(plan.to_json())
        return 0
    gpus = f" × {tp * pp}" if tp * pp > 1 else ""
    show(f"\n[bold]{spec.name}[/] on [bold]{gpu.id}[/]{gpus}, bytes of one GPU as {rules.name} {rules.version} divides "
         f"them\n")  # fmt: skip
    show(_bar(plan))
    show(_parts(plan))
    show(_capacity(plan, rules))
    if plan.tokens < plan.max_model_len:
        show(f"[yellow]A request of {plan.max_model_len:,} tokens doesn't fit[/]: the engine would not start before "
             f"--max-model-len is {plan.tokens:,} or less.")  # fmt: skip
    return 0


def _bar(plan: MemoryPlan) -> Text:
    """One line as wide as the page; each part's share of the device."""
    from rich.text import Text

    text, done = Text(), 0
    for part, (_, mark, colour) in _PARTS.items():
        end = done + getattr(plan, part)
        cells = round(end * _WIDTH / plan.total) - round(done * _WIDTH / plan.total)
        text.append(mark * cells, style=colour)
        done = end
    return text


def _parts(plan: MemoryPlan) -> Table:
    from rich import box
    from rich.table import Table

    from kvsim.units import GIB

    table = Table("", "part", "GiB", "share", "what it is", box=box.SIMPLE, show_footer=True)
    words = {
        "weights": "with the rotary table",
        "activations": f"one step of {plan.max_num_batched_tokens:,} tokens",
        "workspace": f"logits and sampling of {plan.max_num_seqs:,} sequences",
        "other": "CUDA context, libraries, buffers, graphs",
        "unmanaged": "outside the engine's share",
        "pool": f"± {plan.spread / GIB:.2f} (90 %), from what is not known",
    }
    for part, (name, mark, colour) in _PARTS.items():
        size = getattr(plan, part)
        share = f"{100 * size / plan.total:.1f} %"
        table.add_row(f"[{colour}]{mark}[/]", name, f"{size / GIB:.2f}", share, words[part])
    table.columns[1].footer, table.columns[2].footer = "device", f"{plan.total / GIB:.2f}"
    for column in table.columns[2:4]:
        column.justify = "right"
    return table


def _capacity(plan: MemoryPlan, rules: EngineProfile) -> Table:
    from rich.table import Table

    from kvsim.units import format_bytes

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_row("KV bytes a token", format_bytes(plan.kv_bytes_per_token, 4))
    table.add_row("blocks", f"{plan.blocks:,} of {plan.block_size} tokens"
                  + (f", in {len(plan.windows)} groups of layers" if len(plan.windows) > 1 else ""))  # fmt: skip
    table.add_row("tokens", f"{plan.tokens:,}")
    table.add_row("requests at once", f"{plan.max_concurrency:,.2f} of {plan.max_model_len:,} tokens")
    share = rules.options.get("gpu_memory_utilization")
    if share:
        table.add_row("engine's budget", f"{format_bytes(plan.budget, 4)} ({share})")
    return table
