"""The app as a process of its own, for whoever drives it in a browser: tests and benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

PATIENCE_S = 60.0
SETTLED = """document.querySelector('[data-testid=stApp]').dataset.testScriptState !== 'running'
    && !document.querySelector('[data-testid=stSkeleton], [data-testid=stProgress]')"""
"""JavaScript: whether a page shows all that it is going to show"""


@contextmanager
def serving(results: Path | str) -> Iterator[tuple[str, int]]:
    """(address, process id) of the app on a free port of this machine, once it answers; it ends with the block.

    Raises RuntimeError where it does not answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kvsim", "app", "--results", str(results), "--port", str(port), "--no-browser"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the app does not answer: {' '.join(command)}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _answers(port: int) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).read()
    except OSError:
        return False
    return True
