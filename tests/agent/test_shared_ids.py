"""Points, hops and files of an alignment (id_points.py, data/aligned_ids.py)."""

from dataclasses import replace
from pathlib import Path

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import against, make_plan

from coreg_core.errors import BadData, StorageError
from coreg_core.objectives.alignment import Alignment
from coreg_core.plan import Plan
from coreg_core.terms import Membership
from site_agent import id_points
from site_agent.consent.policy import Policy
from site_agent.data.aligned_ids import AlignedIds, SharedIds, guessable, read_ids
from site_agent.data.ids import normalised
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.sources import BadTable

VECTOR = "4fe60a9c1b7adbafbbdaedaf9377841e3f55503aa3ca3fb33e07a8474430086f"


def points(*texts: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex("".join(texts)), dtype=np.uint8).reshape(-1, 32)


def test_multiplication_is_x25519_of_rfc_7748() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    u = points("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert (
        id_points.multiplied(u, scalar).tobytes().hex()
        == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    )


def test_points_of_small_order_are_refused() -> None:
    for u in (bytes(32).hex(), "01" + bytes(31).hex()):
        with pytest.raises(BadData, match="a point that no id has"):
            id_points.multiplied(points(u), bytes(range(32)))


def test_points_are_the_same_in_every_release() -> None:
    """Sites of two releases have to find the same point.

    Another text, or another alignment, is another point.
    """
    assert id_points.point_of("ann", "x").hex() == VECTOR
    assert (
        len({id_points.point_of(text, name) for text in ("ann", "bob") for name in ("x", "y")}) == 4
    )


@given(st.text(max_size=20))
def test_every_point_is_on_the_curve_and_not_on_its_twist(text: str) -> None:
    """Multiplication keeps which of the two: a hash that is taken as it is discloses one bit of
    every id.
    """
    u = int.from_bytes(id_points.point_of(text, "x"), "little")
    assert gmpy2.jacobi(u * (u * (u + id_points.A) + 1) % id_points.P, id_points.P) == 1


@given(st.lists(st.binary(min_size=1, max_size=8), min_size=2, max_size=5, unique=True))
def test_every_list_ends_as_the_same_points(seeds: list[bytes]) -> None:
    secrets = [id_points.exponents(seed) for seed in seeds]
    ids = id_points.points_of(["ann", "bob"], "x")
    ends = []
    for v, own in enumerate(secrets):
        passed = id_points.multiplied(ids, own.start)
        for u, other in enumerate(secrets):
            if u != v:
                passed = id_points.multiplied(passed, other.passing)
        ends.append(id_points.multiplied(passed, own.end).tobytes())
    assert len(set(ends)) == 1
    for own in secrets:
        start, passing, end = (
            int.from_bytes(x, "little") for x in (own.start, own.passing, own.end)
        )
        assert (start * end - passing) % id_points.ORDER == 0
        assert end % 8 == 0
        assert 2**254 <= end < 2**255


# --- ids and files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "exact", "folded", "numbers"),
    [
        (" P-7 ", "P-7", "p-7", "p-7"),
        ("Ｐ－７", "Ｐ－７", "p-7", "p-7"),
        ("Straße  12", "Straße  12", "strasse 12", "strasse 12"),
        ("0007", "0007", "0007", "7"),
        ("a-0010-000", "a-0010-000", "a-0010-000", "a-10-0"),
        ("e\u0301", "\u00e9", "\u00e9", "\u00e9"),
    ],
)
def test_ids_are_normalised_by_the_plans_rule(
    text: str, exact: str, folded: str, numbers: str
) -> None:
    assert [normalised(text, rule) for rule in ("exact", "folded", "numbers")] == [
        exact,
        folded,
        numbers,
    ]


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_ids_of_both_tables_are_listed_once(tmp_path: Path) -> None:
    own = table(tmp_path, "id,x,y\nB,1,2\na ,3,\n")
    shared = table(tmp_path, "id,x\nb,1\nC,2\n", "shared.csv")
    inputs = Inputs(table=own, id="id", unlabelled=shared)
    assert read_ids(inputs, "folded") == ("a", "b", "c")
    assert read_ids(inputs, "exact") == ("B", "C", "a", "b")


def test_an_id_in_several_columns(tmp_path: Path) -> None:
    """Its parts are no features; a missing part is a missing id, with its line."""
    own = table(
        tmp_path, "last,born,x,y\nO'Neil,1980-01-02,1,2\n Núñez ,1990-11-03,3,\nLi,1990-11-03,5,\n"
    )
    inputs = Inputs(table=own, target="y", id="last+born")
    assert read_ids(inputs, "numbers") == ("li+1990-11-3", "núñez+1990-11-3", "o'neil+1980-1-2")
    made = prepare(inputs)
    assert made.data.ids == ("Li+1990-11-03", "Núñez+1990-11-03")
    assert made.preprocessing.feature_names == ["x"]
    with pytest.raises(
        BadTable, match=r"no column 'bron' \(a part of the id\). Did you mean 'born'"
    ):
        prepare(inputs.model_copy(update={"id": "last+bron"}))
    gap = table(tmp_path, "last,born,x,y\na,,1,2\nb,1,3,\nc,,4,\n", "gap.csv")
    with pytest.raises(BadTable, match="line 4"):
        prepare(Inputs(table=gap, target="y", id="last+born"))


def test_shared_ids_that_are_gone_are_named(tmp_path: Path) -> None:
    own = table(tmp_path, "id,x,y\nA,1,2\nb,3,\nC,5,\n")
    shared = SharedIds("folded", ("b", "zoe"))
    made = prepare(Inputs(table=own, target="y", id="id"), b"", SharedIds("folded", ("a", "c")))
    assert made.data.ids == ("a", "c")
    assert len(made.data.y) == 1
    assert len(made.data.Z) == 2
    with pytest.raises(
        BadTable, match=r"1 of the 2 ids that the sites share are not in 'id': 'zoe'.*align again"
    ):
        prepare(Inputs(table=own, target="y", id="id"), b"", shared)
    malformed = table(tmp_path, "id,x,y\na,1,2\nb,3,\nzoe,4,,,\n", "malformed.csv")
    with pytest.raises(BadTable) as error:  # the id is there: no other site has to do anything
        prepare(Inputs(table=malformed, target="y", id="id"), b"", shared)
    assert [fault.kind for fault in error.value.faults] == ["ragged"]


PLAN = Plan("r", "f", Membership(tuple("abc"), 3), Alignment(max_ids=1000))


def test_the_result_of_an_alignment_is_kept_for_these_ids_sites_and_rule(tmp_path: Path) -> None:
    kept = AlignedIds(tmp_path / "aligned")
    ids = ("a", "b")
    shared = SharedIds("folded", ("a",), "r")
    assert kept.find(PLAN, ids, "folded") is None
    path = kept.put(PLAN, ids, shared)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for later in (
        PLAN,
        replace(PLAN, run="another"),
        replace(PLAN, objective=Alignment(max_ids=2)),
    ):
        assert kept.find(later, ids, "folded") == shared
    for plan, own, rule in (
        (replace(PLAN, federation="g"), ids, "folded"),
        (replace(PLAN, membership=Membership(tuple("abcd"), 3)), ids, "folded"),
        (PLAN, (*ids, "c"), "folded"),
        (PLAN, ids, "exact"),
    ):
        assert kept.find(plan, own, rule) is None  # type: ignore[arg-type]
    for text in ("{", "[]", '{"rule": "folded"}'):
        path.write_text(text)
        with pytest.raises(
            StorageError, match=r"cannot be read .*Delete it: the next run aligns the ids again"
        ):
            kept.find(PLAN, ids, "folded")


@pytest.mark.parametrize("align", [False, True])
def test_a_policy_allows_alignments_of_so_many_ids(align: bool) -> None:
    """Also of a training that aligns the ids first."""
    plan = PLAN
    if align:
        training = make_plan(aggregation="secure", min_sites=3)
        plan = replace(training, align=Alignment(max_ids=1000))
    assert against(Policy(), plan) is None
    said = str(against(Policy(alignment=False), plan))
    assert "alignment of ids is not allowed (alignment = false)" in said
    assert "max_ids = 1000 is above max_alignment_ids = 999" in str(
        against(Policy(max_alignment_ids=999), plan)
    )


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        (("1970-01-31", "2001.2.3"), "dates"),
        (("19700131",), "dates"),
        (("12345", "99"), "at most 100,000 possible values"),
        (("abc", "1"), "at most 46,656 possible values"),
    ],
)
def test_ids_that_can_be_listed_are_warned_of(ids: tuple[str, ...], what: str) -> None:
    assert what in guessable(ids)
    assert guessable((*ids, "p-83a1c9")) == ""
