"""Numbers far out of any range, end to end: one sentence and exit 2, no warning before it, no traceback."""

from __future__ import annotations

import pytest

from kvsim import cli

RUN = ["simulate", "--trace", "sample", "--limit", "5", "--model", "llama-3.1-8b", "--device", "h100-sxm", "--json",
       "--no-interval"]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--start", "1e400s"], "--start: duration '1e400s' is too large"),
        (["--policy", "paged-offload", "--tier", "host:1e30GiB"], "size '1e30GiB' is too large"),
        (["--rate", "1e-300"], "longer than a century"),
        (["--rate-scale", "1e-300"], "longer than a century"),
        (["--arrivals", "gamma:1:1e-300"], "from 0.001 to 1000"),
        (["--arrivals", "gamma:1:1e300"], "from 0.001 to 1000"),
        (["--samples", "1000000000000"], "memory"),
        (["--policy", "streaming", "--retention", "window:sinks=²"], "'sinks=²' is not understood"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
@pytest.mark.filterwarnings("error")
def test_out_of_any_range(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main([*RUN, *flags])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("kvsim: ")
    assert err.count("\n") == 1
    assert says in err
