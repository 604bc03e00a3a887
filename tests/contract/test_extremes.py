"""Numbers out of any range and recordings that lack something: one sentence and exit 2, no warning, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim import cli

RUN = ["simulate", "--trace", "sample", "--limit", "5", "--model", "llama-3.1-8b", "--device", "h100-sxm", "--json",
       "--no-interval"]  # fmt: skip
LIMITS = {"block_size": 16, "num_blocks": 5, "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64,
          "prefix_caching": True, "long_prefill_token_threshold": 0}  # fmt: skip


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


@pytest.mark.parametrize(
    ("recording", "says"),
    [
        ({"limits": 5, "requests": [], "steps": []}, "limits has no chunk_tokens"),
        ({"limits": {"num_blocks": 5}, "requests": [], "steps": []}, "limits has no block_size"),
        ({"limits": LIMITS, "requests": 5, "steps": []}, "its requests are no list"),
        ({"limits": LIMITS, "requests": [{"id": 0}], "steps": []}, "requests[0] has no arrival_step"),
        ({"limits": LIMITS, "requests": [], "steps": [{}]}, "steps[0] has no scheduled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_recording_that_lacks_something(
    recording: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(recording))
    code = cli.main(["validate", "schedule", str(tmp_path / "r.json")])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err == f"kvsim: {tmp_path / 'r.json'} is no recording: {says} (docs/validation.md)\n"
