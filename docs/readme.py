"""Write what `make demo` prints into the README (`make readme`); `--check`: exit 1 where it says something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- demo -->\n```\n", "```\n<!-- /demo -->"


def main(check: bool) -> int:
    demo = ["make", "--no-print-directory", "--silent", "demo"]
    done = subprocess.run(demo, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    printed = "\n".join(line.rstrip() for line in done.stdout.split("\nReport:")[0].splitlines()).rstrip() + "\n"
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    written, after = rest.split(END)
    if check:
        if written != printed:
            print(f"README.md shows:\n{written}\nmake demo prints:\n{printed}\nRun `make readme`.")
        return int(written != printed)
    readme.write_text(before + BEGIN + printed + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
