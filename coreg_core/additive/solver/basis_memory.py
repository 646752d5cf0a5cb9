"""How many rounds of basis a coordinator's memory holds (block GMRES)."""

from dataclasses import dataclass

from coreg_core.errors import UsageError

# A restarted basis of fewer rounds gains little a cycle; below it a plan is refused instead (design, issue 9).
LEAST_RESTART = 8
_LONGEST = 10_000
ENOUGH = 16  # enough rounds for every tuning step of private rows (the longest took 9)


def basis_bytes(n_unlabelled: int, n_columns: int, rounds: int, *, recycle: bool = False) -> int:
    """Bytes of so many rounds: 8 (2m + 1) k (rounds + 1), and four times that where the last space is kept and used.

    60 rounds of 17 columns are 0.16 GB at m = 10⁴ and 16 GB at 10⁶; a tuned model's longest solve takes 5 to 9 rounds of 34.
    """
    return 8 * (2 * n_unlabelled + 1) * n_columns * (rounds + 1) * (4 if recycle else 1)


@dataclass(frozen=True)
class Memory:
    """The use of the granted memory: most rounds of one basis, and whether spaces are recycled."""

    restart: int
    recycle: bool


def memory_for(n_unlabelled: int, n_columns: int, most_bytes: int) -> Memory:
    """Recycling where a basis of `ENOUGH` rounds fits four times; else as long a basis as fits once, and restarts.

    Raises
    ------
    UsageError
        fewer than `LEAST_RESTART` rounds fit.
    """
    for recycle, least in ((True, ENOUGH), (False, LEAST_RESTART)):
        rounds = most_bytes // basis_bytes(n_unlabelled, n_columns, 0, recycle=recycle) - 1
        if rounds >= least:
            return Memory(min(int(rounds), _LONGEST), recycle)
    needed = basis_bytes(n_unlabelled, n_columns, LEAST_RESTART)
    raise UsageError(
        f"block GMRES over {n_columns} columns of 2 · {n_unlabelled} + 1 numbers needs {needed / 2**30:.2g} GiB for "
        f"{LEAST_RESTART} rounds, and the plan grants {most_bytes / 2**30:.2g} GiB. Grant more memory, or ask for fewer probes."
    )
