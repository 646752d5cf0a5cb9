"""Every attack of docs/attacks, run: it works where the threat model says so, and fails elsewhere for the reason that is
given there.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "attacks"


@pytest.fixture(autouse=True)
def _their_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.delitem(sys.modules, "federation", raising=False)  # tests/e2e has one of its own


def attack(name: str) -> dict[str, Any]:
    """What the script's own function returns."""
    spec = importlib.util.spec_from_file_location(f"attack_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.attack()
    sys.modules.pop("federation", None)
    return found


def test_every_script_of_the_folder_is_run_here() -> None:
    told = {path.stem for path in FOLDER.glob("*.py")} - {"federation"}
    here = Path(__file__).read_text()
    assert [name for name in sorted(told) if f'attack("{name}")' not in here] == []


def test_whoever_keeps_answers_in_the_clear_has_labels_and_of_masked_ones_nothing() -> None:
    found = attack("passive_reconstruction")
    assert found["plaintext"]["m0"] < 1e-10
    assert found["plaintext"]["labels"] < 1e-10
    assert min(found["secure"].values()) > 0.5


def test_chosen_directions_give_the_mean_of_the_operators_and_no_site_s_own() -> None:
    found = attack("chosen_directions")
    assert max(found["plaintext"]["R"], found["plaintext"]["m0"], found["secure"]["mean of R"]) < 1e-12
    assert found["secure"]["R"] > 1.0
    assert found["secure"]["m0"] > 0.5
    assert found["secure"]["R by the mean"] == pytest.approx(found["plaintext"]["R by the mean"], rel=1e-9)


def test_a_sum_without_one_site_is_refused_in_the_run_and_in_another() -> None:
    found = attack("differencing")
    for where in ("in the run", "in another run"):
        assert "the difference of such sums is the answer of d alone" in found[where]["refused"]
    assert found["consented, near weight"]["off"] < 0.1
    assert found["consented, equal weight"]["off"] < 1e-12


def test_invented_sites_are_not_those_that_are_pinned() -> None:
    found = attack("invented_sites")
    assert found["peers not pinned"]["off"] < 1e-12
    assert "puts itself in that site's place" in found["pinned"]["refused"]


def test_colluding_sites_leave_the_sum_of_the_others() -> None:
    found = attack("colluding_sites")
    assert min(found[str(k)] for k in range(3)) > 0.3
    assert found["3"] < 1e-12


def test_the_sum_tells_a_site_s_labels_no_better_than_their_mean_does() -> None:
    found = attack("label_inference")
    assert found["plaintext"]["error over deviation"] < 1e-9
    assert found["secure"]["error over deviation"] > 0.9


def test_a_plan_chosen_against_a_site_is_refused_by_the_numbers_key() -> None:
    found = attack("chosen_plan")
    for answers in ("plaintext", "secure"):  # masks hide nothing where nobody else has anything to say
        assert found[answers]["narrow"]["off"] < 1e-9
        assert found[answers]["strong"]["off"] < 0.01
        refused = found[answers]["narrow, policy"]["refused"]
        assert all(key in refused for key in ("bandwidth_min=0.5", "ridge_min=0.01", "label_units"))
        assert found[answers]["flat"]["off"] < 1e-3
        assert "ridge_max=1" in found[answers]["flat, policy"]["refused"]
        assert found[answers]["flat, border"]["off"] > 0.5
    assert "label_share_max=0.95" in found["secure"]["strong, policy"]["refused"]
    assert found["secure"]["border"]["off"] > 0.2
    assert found["secure"]["honest"]["off"] > 0.5 > 0.2 > found["plaintext"]["honest"]["off"]
    assert (
        found["plaintext"]["border"]["off"] < 0.01
    )  # in the clear a label among the shared rows is told, whatever a policy says


def test_a_keyed_digest_confirms_no_guess_of_the_ids() -> None:
    assert attack("membership_of_an_id") == {"plain": True, "keyed": False}


def test_of_two_sites_each_has_the_other_s_predictions_and_of_three_none() -> None:
    found = attack("two_sites")
    assert found["two"] < 1e-8
    assert found["three"] > 0.3


def test_residuals_tell_another_site_what_the_plan_names_and_no_more() -> None:
    found = attack("additive_residuals")
    assert found["open"]["labels"] < 1e-8
    assert found["grouped"]["means"] < 1e-7
    assert found["grouped"]["labels"] > 0.8 * found["grouped"]["without"]
    assert found["smoothed"]["labels"] > found["smoothed"]["without"]


def test_a_ledger_whose_answers_were_taken_out_is_found_by_its_signatures() -> None:
    found = attack("rewritten_ledger")
    honest = found.pop("as it was")
    assert honest == {
        "answers in the chain": 10,
        "verified": "signed by both up to line 13",
        "with the record": "signed by both up to line 13",
    }
    assert {said["answers in the chain"] for said in found.values()} == {0}, "the chain alone shows nothing"
    assert "the chain was made anew" in found["answers out"]["verified"]
    assert "not of this federation's authority" in found["heads of a stranger's key"]["verified"]
    for how in ("heads out too", "heads of the operator's own key"):
        assert found[how]["verified"] == "nothing is signed by both"
        assert "the end was cut off" in found[how]["with the record"]
