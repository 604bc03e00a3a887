"""`kvsim calibrate`: measurements become a device profile that knows its own error."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.commands.output import show, show_json
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.device import DeviceProfile, Facts
    from kvsim_calibration.build import Options
    from kvsim_calibration.rows import Rows

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True,
                  help="Make a device profile from measurements, and look at what one knows.\n\n"
                  "Example: kvsim calibrate --device cpu --models smollm2-135m --budget 3m --out my-cpu.json")
imports = typer.Typer(no_args_is_help=True, help="Fit a profile to published measurements.\n\n"
                      "Example: kvsim calibrate import aiconfigurator installed --system h100-sxm --out h100.json")
app.add_typer(imports, name="import")

System = Annotated[str, typer.Option("--system", help="Device id, as in `kvsim list devices`: its facts are used")]
Out = Annotated[Path, typer.Option("--out", help="Profile JSON to write")]
Base = Annotated[Path | None, typer.Option("--onto", help="Profile whose curves stay and come first")]
Tolerance = Annotated[float, typer.Option(help="Relative miss that a left-out knot may cost: larger, smaller file")]
Knots = Annotated[int, typer.Option(min=4, help="Values of m in a table of linear layers, at most")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")]


@app.callback(invoke_without_command=True)
def measure(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option("--out", help="Profile JSON to write; raw rows go beside it")] = None,
    models: Annotated[str | None, typer.Option(help="Models whose kernels are timed: names or config.json paths, with "
                      "commas (default: smollm2-135m on a CPU, llama-3.1-8b on a GPU)")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, … (default: the first GPU, else the CPU)")] = None,
    backend: Annotated[str | None, typer.Option(help="cuda: kvsim's kernels and torch's GEMM; torch: torch's "
                                                "operators (default: cuda on an NVIDIA GPU, else torch)")] = None,
    budget: Annotated[str, typer.Option(help="Time for measuring, e.g. 3m; the fit adds some seconds")] = "8m",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the raw rows of an earlier run")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU (default: all cores)")] = None,
    dtypes: Annotated[str | None, typer.Option(help="Of weights and activations, the main one first "
                                               "(default: fp32,bf16 on a CPU, bf16 on a GPU)")] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, help="Most decoding sequences")] = None,
    max_context: Annotated[int | None, typer.Option(min=16, help="Longest context in tokens")] = None,
    max_chunk: Annotated[int | None, typer.Option(min=8, help="Longest prefill chunk in tokens")] = None,
    as_json: Json = False,
) -> int:
    """Measure this device: time the kernels of your models, fit them, write a profile of tier `measured`.

    A run that ends early, or is killed, goes on with --resume: every row is on disk when it is measured.

    Example: kvsim calibrate --device cpu --models smollm2-135m --budget 3m --out my-cpu.json
    """
    if context.invoked_subcommand is not None:
        return 0
    from kvsim.units import parse_duration_ns, seconds
    from kvsim_calibration.backends.command import Asked, calibrate
    from kvsim_calibration.backends.summary import report

    if out is None:
        raise InputError("kvsim calibrate needs --out FILE.json, where the profile goes")
    words = ["kvsim", "calibrate", *(["--device", device] if device else []), *(["--backend", backend] if backend else
             []), *(["--models", models] if models else []), "--budget", budget, "--out", out.name]
    asked = Asked(_names(models, "--models"), out, seconds(parse_duration_ns(budget)), device, backend, resume, threads,
                  _names(dtypes, "--dtypes"), max_batch, max_context, max_chunk)
    profile, store, outcome = calibrate(asked, shlex.join(words))
    _write(profile, out)
    report(profile, store, outcome, out, as_json)
    return 0


@app.command("fit")
def fit_rows(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Raw rows of a run, from any machine")],
    out: Out, as_json: Json = False,
) -> int:
    """Fit the raw rows of a run again.

    Example: kvsim calibrate fit my-cpu.rows.jsonl --out my-cpu.json
    """
    from kvsim_calibration.backends.command import fitted
    from kvsim_calibration.backends.store import Store
    from kvsim_calibration.backends.summary import report

    _checked(out)
    store = Store(rows)
    profile = fitted(store, shlex.join(["kvsim", "calibrate", "fit", rows.name, "--out", out.name]))
    _write(profile, out)
    report(profile, store, None, out, as_json)
    return 0


@app.command("generation")
def time_generation(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="Profile JSON of this device: the times go beside "
                                            "it, into NAME.generation.json")],
    model: Annotated[str, typer.Option(help="Whose random weights generate")] = "smollm2-135m",
    tokens: Annotated[int, typer.Option(min=8, help="Length of the answer")] = 256,
    budget: Annotated[str, typer.Option(help="Time for measuring; where it is short, fewer tokens")] = "2m",
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, … (default: the first GPU, else the CPU)")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU (default: all cores)")] = None,
) -> int:
    """Time answers with a KV cache and without one, by the reference engine: linear against quadratic.

    `kvsim calibrate show PROFILE --html` draws them.

    Example: kvsim calibrate generation my-cpu.json --tokens 256
    """
    from kvsim.device import load_device
    from kvsim.progress import progress
    from kvsim.units import parse_duration_ns, seconds
    from kvsim_calibration.backends.command import device_of, needs, pinned, same_kind
    from kvsim_calibration.generation import measure, path_beside

    described = load_device(profile)
    needs("torch")
    on = device_of(device)
    same_kind(described, str(on))
    pinned(threads)
    with progress("Generating") as update:
        found = measure(model, described.name, tokens, seconds(parse_duration_ns(budget)), str(on),
                        "fp32" if on.type == "cpu" else "bf16", update)
    found.save(path_beside(profile))
    show(found.sentence())
    show(f"times: {path_beside(profile)}")
    return 0


def _names(text: str | None, option: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not names:
        raise InputError(f"{option} is {text!r}, which names nothing; leave it out or write a list, one comma between")
    return names


@imports.command("aiconfigurator")
def import_aiconfigurator(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder, wheel of aiconfigurator-core, or `installed`")],
    system: System, out: Out, onto: Base = None, tolerance: Tolerance = 0.05, m_knots: Knots = 80,
    all_reduce: Annotated[str | None, typer.Option(metavar="VERSION", help="All-reduce as this vLLM version had it "
                                                   "\\[default: the newest]")] = None,
    m_knots_of: Annotated[str | None, typer.Option(metavar="DTYPE=N,…", help="--m-knots of some dtypes")] = None,
    all_shapes: Annotated[bool, typer.Option("--all-shapes", help="Keep every (N, K) of linear layers: unmeasured ones "
                                             "are nearer to one, the profile is larger")] = False,
    as_json: Json = False,
) -> int:  # fmt: skip
    """NVIDIA's kernel database (Apache-2.0): attention, GEMM, experts, all-reduce as vLLM runs them.

    Example: kvsim calibrate import aiconfigurator installed --system h100-sxm --out h100.json
    """
    from kvsim_calibration.build import Options
    from kvsim_calibration.sources import aiconfigurator

    told = (("--all-reduce", all_reduce), ("--m-knots-of", m_knots_of))
    only = [part for pair in told if pair[1] for part in pair] + ["--all-shapes"] * all_shapes
    made_by = _command("aiconfigurator", path, system, out, onto, tolerance, m_knots, *only)
    options = Options(tolerance=tolerance, m_knots=m_knots, m_knots_of=_knots_of(m_knots_of), all_shapes=all_shapes)
    return _import("aic", system, out, onto, options, as_json, made_by,
                   lambda device, facts: aiconfigurator.read(path, device, facts, all_reduce))


def _knots_of(text: str | None) -> dict[str, int]:
    """`"fp8=30,fp8_block=22"` → {"fp8": 30, "fp8_block": 22}. Raises InputError."""
    from kvsim_calibration.sources.aiconfigurator import DTYPES

    found = {}
    for part in _names(text, "--m-knots-of"):
        dtype, _, number = part.partition("=")
        if dtype not in DTYPES.values() or not (number.isascii() and number.isdigit() and int(number) >= 4):
            raise InputError(f"--m-knots-of is {text!r}; write DTYPE=N with N from 4 on, DTYPE one of "
                             f"{', '.join(sorted(set(DTYPES.values())))}")
        found[dtype] = int(number)
    return found


@imports.command("llmservingsim")
def import_llmservingsim(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder with <gpu>/<vendor>/<model>/<variant>/tp<N>")],
    system: System, out: Out, model: Annotated[str | None, typer.Option(help="Only this model's tables")] = None,
    onto: Base = None, tolerance: Tolerance = 0.05, m_knots: Knots = 80, as_json: Json = False,
) -> int:
    """LLMServingSim's layer tables (MIT): layers of a real vLLM, mixed steps and unequal lengths included.

    Example: kvsim calibrate import llmservingsim profiler/perf --system rtx-4090 --out rtx-4090.json
    """
    from kvsim_calibration.build import Options
    from kvsim_calibration.sources import llmservingsim

    only = ["--model", model] if model else []
    made_by = _command("llmservingsim", path, system, out, onto, tolerance, m_knots, *only)
    return _import("lss", system, out, onto, Options(tolerance=tolerance, m_knots=m_knots), as_json, made_by,
                   lambda device, _: llmservingsim.read(path, device, model))


@imports.command("vidur")
def import_vidur(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder with Vidur's profiling CSVs")],
    system: System, out: Out, onto: Base = None, tolerance: Tolerance = 0.05, m_knots: Knots = 80,
    as_json: Json = False,
) -> int:
    """Vidur's tables (MIT): dense layers and elementwise kernels of A100 and H100.

    Example: kvsim calibrate import vidur data/profiling --system a100-80-sxm --onto a100.json --out a100.json
    """
    from kvsim_calibration.build import Options
    from kvsim_calibration.sources import vidur

    made_by = _command("vidur", path, system, out, onto, tolerance, m_knots)
    return _import("vidur", system, out, onto, Options(tolerance=tolerance, m_knots=m_knots), as_json, made_by,
                   lambda device, _: vidur.read(path, device))


@app.command("show")
def show_profile(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile JSON or device id")],
    html: Annotated[Path | None, typer.Option(help="Write a report with plots")] = None,
    data: Annotated[str | None, typer.Option(help="The source's rows, for measured against predicted")] = None,
    as_json: Json = False,
) -> int:
    """What a profile knows: its curves, how many points, how far off on held-out ones.

    Example: kvsim calibrate show h100-sxm --html report.html
    """
    from kvsim.device import load_device
    from kvsim_calibration import show as view

    device = load_device(profile)
    if html:
        from kvsim.progress import progress
        from kvsim_calibration.generation import Generation, path_beside
        from kvsim_calibration.report import write_report

        beside = path_beside(Path(profile))
        with progress("Drawing the page") as update:
            write_report(device, html, data, Generation.load(beside) if beside.is_file() else None, update)
    if as_json:
        show_json(view.as_json(device))
    else:
        view.print_table(device)
        if html:
            show(f"report: {html}")
    return 0


def _command(source: str, path: str, system: str, out: Path, onto: Path | None, tolerance: float, m_knots: int,
             *more: str) -> str:
    """The command line that does the same again."""
    options = ["--system", system, "--tolerance", f"{tolerance:g}", "--m-knots", str(m_knots),
               *(["--onto", onto.name] if onto else []), *more]
    return shlex.join(["kvsim", "calibrate", "import", source, path, *options, "--out", out.name])


def _import(tag: str, system: str, out: Path, onto: Path | None, options: Options, as_json: bool, made_by: str,
            read: Callable[[str, Facts], list[Rows]]) -> int:
    from kvsim.device import Curves, load_device
    from kvsim_calibration import show as view
    from kvsim_calibration.build import build
    from kvsim_calibration.progress import Steps

    base = load_device(str(onto) if onto else system)
    if not onto:
        base = base.model_copy(update={"curves": Curves(), "provenance": {}, "curves_from": None})
    _checked(out)
    with Steps() as steps:
        steps("reading")
        rows = read(system, base.facts)
        profile = build(base, tag, rows, made_by, options, steps)
    _write(profile, out)
    if as_json:
        show_json(view.as_json(profile))
    else:
        view.print_table(profile)
        show(f"{out}: {out.stat().st_size / 1000:.0f} kB")
    return 0


def _checked(out: Path) -> None:
    if out.suffix != ".json":
        raise InputError(f"--out {out}: a profile's name ends in .json")


def _write(profile: DeviceProfile, out: Path) -> None:
    from kvsim.report.files import write_text

    write_text(out, profile.to_json())
