"""What a row was measured under: the bandwidth beside it, and what others used of the machine meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from narrows.measure.noise import NOISY_CORES, cores_of_others
from narrows.measure.samples import Samples

BESIDE_BYTES = 1 << 30  # over any last-level cache, and read in a fraction of a second
BESIDE_READS = 3

Row = dict[str, Any]


def under_conditions(rows: Iterable[Row], read: Callable[[], Samples]) -> Iterator[Row]:
    """Rows with their conditions, from `read`, which measures GB/s: once before the rows and once behind each.

    `bandwidth_gigabytes` is the median of the reads right before and right behind the row: a machine's bandwidth
    drifts, and a row is to be judged by what the memory gave at that time. `bandwidth_share` is the row's share of it.
    `others` is how many cores other programs kept busy during the row and the read behind it.
    """
    ahead, before = iter(rows), read()
    while True:
        (row, after), others = cores_of_others(lambda: (next(ahead, None), read()))
        if row is None:
            return
        gigabytes, before = Samples(before.values + after.values), after
        yield row | {
            "bandwidth_gigabytes": gigabytes.median,
            "bandwidth_range": [gigabytes.min, gigabytes.max],
            "bandwidth_share": row["bytes_per_second"] / (gigabytes.median * 1e9),
            "others": others,
            "noisy": others > NOISY_CORES,
        }
