"""Writes docs/performance.md and the table of the README from the result files in bench/results/.

`python bench/report.py` after `bench/beside.py run ... --out bench/results/beside-NAME.json`; `--check` only compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NAMES = {
    "decode-0": "decode, empty context",
    "decode-4k": "decode at 4,096 tokens of context",
    "prefill-512": "prompt of 512 tokens",
    "prefill-4k": "prompt of 4,096 tokens",
    "batch-8": "8 requests together",
    "batch-16": "16 requests together",
}
HEAD = "| {} | Narrows, tokens/s | of the bound | {} |\n|---|---|---|{}|\n"


def cell(line: dict[str, Any]) -> str:
    """`tokens/s (Narrows is x times as fast: min..max)` of a peer's line."""
    ratio = line["narrows_ratio"]
    return "{:.4g} (**{median:.2f}x**, {min:.2f}..{max:.2f})".format(line["tokens_per_second"]["median"], **ratio)


def table(result: dict[str, Any], first: str) -> str:
    """A row per case, a column per peer; Narrows' own figure is the one measured as that peer is."""
    lines = {(line["case"], line["system"]): line for line in result["rows"]}
    peers = [name for name in dict.fromkeys(s for _, s in lines) if not name.startswith("narrows")]
    text = HEAD.format(first, " | ".join(peers), "|".join("---" for _ in peers))
    for case in dict.fromkeys(c for c, _ in lines):
        own = lines[case, "narrows"]
        speed = "{median:.4g} ({min:.4g}..{max:.4g})".format(**own["tokens_per_second"])
        share = f"{own['bandwidth_share']:.0%}" if case.startswith("decode") else ""
        row = [NAMES[case], speed, share, *(cell(lines[case, p]) if (case, p) in lines else "" for p in peers)]
        text += "| " + " | ".join(row) + " |\n"
    return text


def page(results: list[dict[str, Any]]) -> str:
    text = (ROOT / "docs" / "performance.head.md").read_text()
    for result in results:
        facts = result["provenance"]
        text += f"\n## {facts['model']['name']}\n\n"
        text += table(result, "case")
        text += (
            f"\n{facts['cpu']}, {facts['isa']}, {facts['threads']} threads, "
            f"{result['bandwidth_gigabytes']:.1f} GB/s read bandwidth; "
            f"`{facts['command']}`, commit {facts['commit']}.\n"
        )
    return text


def readme(results: list[dict[str, Any]]) -> str:
    """The README with its table between the two markers replaced."""
    path = ROOT / "README.md"
    before, rest = path.read_text().split("<!-- results -->\n", 1)
    after = rest.split("<!-- end of results -->", 1)[1]
    return f"{before}<!-- results -->\n{table(results[0], 'SmolLM2-135M')}<!-- end of results -->{after}"


def main() -> None:
    order = ("smollm2", "qwen-0.5b", "qwen-1.5b", "gemma-270m")
    files = [ROOT / "bench" / "results" / f"beside-{name}.json" for name in order]
    results = [json.loads(f.read_text()) for f in files if f.exists()]
    wanted = {ROOT / "docs" / "performance.md": page(results), ROOT / "README.md": readme(results)}
    for path, text in wanted.items():
        if "--check" in sys.argv and path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what bench/results say: run python bench/report.py")
        path.write_text(text)


if __name__ == "__main__":
    main()
