"""`kvsim app`: open the app in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvsim.errors import InputError


def command(
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs: the only one the app reads and writes")
                       ] = Path("results"),
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port to serve on")] = 8501,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to serve on; others than this machine can only "
                                                              "reach it with another one")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open a browser")] = True,
) -> NoReturn:  # fmt: skip
    """See what the cache does: policies side by side, memory over time, what a step costs, lessons with live controls.

    Example: kvsim app --results results
    """
    if results.exists() and not results.is_dir():
        raise InputError(f"--results {results} is a file; it must be a folder of runs")
    try:
        import streamlit  # noqa: F401
    except ImportError as error:
        raise InputError(f"the app needs {error.name}: pip install 'kvsim[app]'") from None
    results.mkdir(parents=True, exist_ok=True)
    command = launch(port, host, browser)
    # This process becomes the server: a signal that ends `kvsim app` leaves no server behind.
    os.execve(command[0], command, {**os.environ, "KVSIM_RESULTS": str(results.resolve())})


def launch(port: int, host: str, browser: bool) -> list[str]:
    """The command line of the server."""
    from kvsim_app.store import UPLOAD_MB  # here, for it loads the trace readers

    options = {
        "server.address": host,
        "server.port": port,
        "server.headless": not browser,
        "server.maxUploadSize": UPLOAD_MB,
        "server.fileWatcherType": "none",
        "runner.magicEnabled": False,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "theme.light.primaryColor": "#0072B2",
        "theme.dark.primaryColor": "#2A8BC6",
    }
    script = Path(__file__).with_name("main.py")
    flags = [f"--{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()]
    return [sys.executable, "-m", "streamlit", "run", str(script), *flags]
