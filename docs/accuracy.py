"""Write what `kvsim list policies --accuracy` prints into docs/accuracy.md (a test holds the two equal)."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from kvsim.report.quality import shipped

BEGIN, END = "<!-- table -->\n```\n", "```\n<!-- /table -->"
PAGE = Path(__file__).with_name("accuracy.md")


def printed() -> str:
    """The table at 80 columns."""
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        console.print(shipped())
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).rstrip() + "\n"


def main() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + printed() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
