"""Tables of single techniques, from the results of `narrows frontier` and `narrows bench`, for their pages in docs."""

from __future__ import annotations

from typing import Any

from .tables import estimate, ratio, source, spread, table

Result = dict[str, Any]


def frontier(found: list[Result]) -> str:
    """Of `narrows frontier`: the variants by bytes per token, and what beats them."""
    text = ""
    for result in found:
        facts, points = result["provenance"], sorted(result["points"], key=lambda p: -p["bytes_per_token"])
        rows = [[p["name"], f"{p['bytes_per_token'] / 1e6:,.2f}", _runs(p), p["beaten_by"] or ""] for p in points]
        heads = ["variant", "MB/token", f"{result['metric']} (range over runs) [95 %]", "beaten by"]
        title = f"{facts['model']['name']}, `{result['measure']}`"
        text += _section(result, title, heads, rows, f"{result['metric']} against bytes per token")
    return text


def kernels(found: list[Result]) -> str:
    """Of `narrows bench kernel`: sparse products beside dense ones."""
    text = ""
    for result in found:
        rows = [
            [
                f"{row['format'].removesuffix(':sparse')}, {row['pattern']}",
                str(row["batch"]),
                spread({k: v / 1e9 for k, v in row["weights_per_second"].items()}),
                f"{row['bytes_per_weight']:.3f}",
                f"{row['bandwidth_share']:.0%}",
                "" if row["pattern"] == "dense" else ratio(row["dense_ratio"]),
            ]
            for row in result["rows"]
        ]
        heads = ["weights", "rows", "G weights/s", "bytes/weight", "of the bound", "over dense"]
        text += _section(result, f"Products, {result['pattern']}", heads, rows)
    return text


def stacks(found: list[Result]) -> str:
    """Of `narrows bench decode` with several stacks, which took turns."""
    text = ""
    for result in (result for result in found if "stack" in result["rows"][0]):
        rows = [
            [
                f"`{row['stack']}`",
                str(row["batch"]),
                spread(row["tokens_per_second"]),
                f"{(row['weight_bytes_per_token'] + row['kv_bytes_per_token']) / 1e6:,.1f}",
                f"{row['bandwidth_share']:.0%}",
                ratio(row["ratio"]),
            ]
            for row in result["rows"]
        ]
        heads = ["stack", "requests", "tokens/s", "MB/token", "of the bound", "over the first"]
        text += _section(result, f"Whole steps, {result['provenance']['model']['name']}", heads, rows)
    return text


def drafts(found: list[Result]) -> str:
    """Of `narrows bench draft`: each draft beside plain decoding."""
    text = ""
    for result in found:
        rows = [
            [
                f"`{row['draft']}`",
                str(row["batch"]),
                f"{row['temperature']:g}",
                f"{row['total_ratio']:.2f}x",
                ratio(row["plain_ratio"]),
                ratio(row["plain_cpu_ratio"]) if "plain_cpu_ratio" in row else "",  # known of Narrows alone
                f"{row['acceptance_length']:.2f}",
                f"{row['target_forwards_per_token']:.2f}",
                f"{row['drafted_tokens_per_token']:.2f}",
                f"{row['draft_share']:.0%}" if "draft_share" in row else "",
                f"{row['same']:.0%}",
            ]
            for row in result["rows"]
            if row["draft"] != "none"
        ]
        asked = f"{result['rows'][0]['num_prompts']} prompts of {result['prompts']}, {result['tokens']} tokens each"
        title = f"{result['provenance']['model']['name']}, {asked}, {result['provenance']['isa']}"
        heads = ["draft", "together", "temperature", "speed over plain", "by prompts (range)", "by processor time"]
        heads += ["kept a forward", "forwards a token", "drafted a token", "time in drafting", "same answers"]
        text += _section(result, title, heads, rows, "Speed over plain decoding by draft")
        text += _kinds(result["rows"])
    return text


def loads(found: list[Result]) -> str:
    """Of `narrows bench serve`: servers under the same load, which their results' names sort together."""
    rows = []
    for result in found:
        settings, times, sent = result["settings"], result["times"], result["requests_sent"]
        load = settings["trace"] or f"{settings['prompt_tokens']} + {settings['output_tokens']} tokens"
        seconds = max(request["due"] for request in sent)
        rate = f"{len(sent) / seconds:.2f} a second" if seconds else "once"
        slo = ", ".join(f"{name} {bound:g} s" for name, bound in result["slo"].items())
        known = [times[name] for name in ("ttft", "tpot")]  # without answers there are none
        rows.append(
            [
                ", ".join(filter(None, (result["system"], result["server"]))),
                f"{load}, {len(sent)} at {rate}",
                f"{result['good'] / result['requests']:.0%} ({slo or 'no bounds'})",
                f"{result['goodput']:.3f}",
                *(f"{some['p50']:.3g} / {some['p99']:.3g}" if some else "" for some in known),
                f"{result['output_tokens_per_second']:.1f}",
            ]
        )
    heads = ["server", "load, requests", "good", "good a second", "TTFT, s: median / p99", "TPOT, s: median / p99"]
    sources = "".join(f"- {f['cpu']}, {f['isa']}; {source(f)}\n" for f in (result["provenance"] for result in found))
    return f"\n{table([*heads, 'output tokens/s'], rows)}\n{sources}\n"


def _kinds(rows: list[dict[str, Any]]) -> str:
    """Of drafts of one request at a time: the median of the ratios by kind of prompt, for each temperature."""
    known = [row for row in rows if "by_kind" in row and row["draft"] != "none"]
    if not known:
        return ""
    kinds = list(known[0]["by_kind"])
    lines = [
        [f"`{row['draft']}`", f"{row['temperature']:g}", *(f"{row['by_kind'][kind]['median']:.2f}x" for kind in kinds)]
        for row in known
    ]
    return f"\n{table(['by kind of prompt', 'temperature', *kinds], lines)}"


def _section(result: Result, title: str, heads: list[str], rows: list[list[str]], picture: str = "") -> str:
    """A table under its title, with a picture if that has a caption, and where the figures come from."""
    facts = result["provenance"]
    drawn = f"![{picture}](img/{result['stem']}.png)\n\n" if picture else ""
    return f"\n### {title}\n\n{table(heads, rows)}\n{drawn}{facts['cpu']}, {facts['isa']}; {source(facts)}\n"


def _runs(point: dict[str, Any]) -> str:
    spread = f" ({point['min']:.4g}..{point['max']:.4g}, {point['runs']})" if point["runs"] > 1 else ""
    return estimate(point) + spread
