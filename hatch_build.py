"""Compiles the simulator's inner loop: `python hatch_build.py`, and what every `pip install` of this folder does.

mypyc turns typed modules into C, three times as fast and the same to the last bit (tests/e2e/test_native.py). They
come beside the Python sources, in kvsim/_native, and kvsim/native.py uses them only while they are made of exactly the
sources there, so that nobody ever runs a stale one. Without a C compiler, or with KVSIM_PURE set, nothing is compiled
and kvsim runs from its sources.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "kvsim" / "_native"
COMPILED = {
    ".": "record",
    "cache": "base block_pool buddy buddy_space contiguous fit growth host_blocks hybrid none oracle paged prefix "
    "radix radix_pool ranked reserve retained reuse ring run_pool space tiered",
    "cluster": "cluster member",
    "cost": "attention host line lockstep model pipeline policy prefill shape table",
    "engine": "arrivals decode_set interfaces link replay replica sampling sglang_replica shapes",
    "sched": "base chunked prefill_first sglang sglang_budget sglang_order static",
}
"""folder of kvsim → its modules that run for every step or event"""
NOT_TYPED_HERE = ("annotated_types", "polars", "pydantic", "rich", "typer")
"""libraries that no compiled module uses: mypy need not read them (a minute)"""
FLAGS = ["-ffp-contract=off", "-Wno-error"]
"""no fused multiply-adds: the same bits as Python's floats on every machine"""


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, or leaves them in the tree of an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        why = "KVSIM_PURE is set" if os.environ.get("KVSIM_PURE") else compiled()
        if why:
            self.app.display_warning(f"kvsim is not compiled and runs at a third of its speed: {why}")
            return
        build_data["artifacts"].append("/kvsim/_native/*")
        build_data["pure_python"], build_data["infer_tag"] = False, True


def compiled() -> str:
    """Compile what has changed into kvsim/_native; why that cannot be done, or nothing."""
    sys.path.insert(0, str(ROOT))
    from kvsim import native

    sources = [ROOT / "kvsim" / folder / f"{name}.py" for folder, names in COMPILED.items() for name in names.split()]
    made_of = {path.relative_to(ROOT / "kvsim").as_posix(): native.digest(path) for path in sources}
    if native.up_to_date() and native.manifest()["sources"] == made_of:
        return ""
    shutil.rmtree(NATIVE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with _silenced(log):
                files = _build([path.relative_to(ROOT).as_posix() for path in sources], Path(folder))
        except (Exception, SystemExit) as error:  # mypyc exits, setuptools raises what it likes
            printed = log.read_text(errors="replace").splitlines() if log.exists() else []
            said = [line for line in printed if "error" in line]
            return f"{error} ({said[-1]})" if said else str(error)
        NATIVE.mkdir()
        for file in files:
            shutil.copy(file, NATIVE / file.name)
    (NATIVE / "manifest.json").write_text(json.dumps({"suffix": _suffix(), "sources": made_of}, indent=1) + "\n")
    return ""


def _build(sources: list[str], folder: Path) -> list[Path]:
    """The shared libraries of these modules, in `folder`; each is called as its whole module is."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    os.chdir(ROOT)  # mypy finds modules from here
    settings = "[mypy]\nignore_missing_imports = True\n" + "".join(
        f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in NOT_TYPED_HERE)
    (folder / "mypy.ini").write_text(settings)
    extensions = mypycify(
        [f"--config-file={folder / 'mypy.ini'}", f"--cache-dir={folder / 'cache'}", *sources],
        opt_level="1", debug_level="0", multi_file=True, target_dir=str(folder / "c"), group_name="kvsim",
    )
    for extension in extensions:
        extension.extra_compile_args += FLAGS

    class SideBySide(build_ext):
        """Compiles the files of one library on all cores; setuptools takes them one by one."""

        def build_extensions(self) -> None:
            compile_all = self.compiler.compile

            def compile_each(files: list[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    return [made for found in pool.map(lambda file: compile_all([file], **options), files)
                            for made in found]

            self.compiler.compile = compile_each
            super().build_extensions()

    command = SideBySide(Distribution({"name": "kvsim", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    found = []
    for extension in extensions:
        flat = folder / (extension.name + _suffix())
        shutil.move(folder / "lib" / command.get_ext_filename(extension.name), flat)
        found.append(flat)
    return found


def _suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


@contextmanager
def _silenced(log: Path) -> Iterator[None]:
    """What compilers print goes to `log`: it is hundreds of lines."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)


if __name__ == "__main__":
    why_not = compiled()
    sys.exit(f"kvsim is not compiled: {why_not}" if why_not else 0)
