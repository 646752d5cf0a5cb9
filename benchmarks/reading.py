"""How long a CSV file takes to become numbers, beside polars.read_csv of the same file.

python benchmarks/reading.py [ROWS]: 11 columns of numbers; the least time of several readings, in
one process.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from site_agent.data.tables import read_table

TRIES = 15


def least(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    values = np.random.default_rng(0).normal(size=(rows, 11)).round(4)
    frame = pl.DataFrame(values, schema=[f"c{i}" for i in range(11)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"

        def ours() -> None:
            table = read_table(path)
            for name in table.columns:
                table.numbers(name)

        for kind in ("plain", "quoted", "decimal commas"):
            if kind == "decimal commas":
                path.write_text(frame.write_csv(separator=";").replace(".", ","))
            else:
                frame.write_csv(path, quote_style="always" if kind == "quoted" else "necessary")
            separator = ";" if kind == "decimal commas" else ","
            polars = least(
                lambda s=separator: pl.read_csv(path, separator=s, decimal_comma=s == ";")
            )  # type: ignore[misc]
            table = least(ours)
            print(
                f"{kind:<15} {rows} rows: {table * 1e3:.0f} ms, polars {polars * 1e3:.0f} ms:"
                f" {table / polars:.1f} times"
            )


if __name__ == "__main__":
    main()
