"""Every attack of docs/research/attacks, run: it works where the threat model says so, and fails elsewhere for the reason that is
given there.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # of many small matrices
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "research" / "attacks"


@cache
def attack(name: str) -> dict[str, Any]:
    """What the script's own function returns; in a process without the suite's checks of shapes, which take minutes here."""
    code = f"import json, {name}; print(json.dumps({name}.attack(), default=float))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=FOLDER, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_script_of_the_folder_is_run_here() -> None:
    told = {path.stem for path in FOLDER.glob("*.py")} - {"federation"}
    here = Path(__file__).read_text()
    assert [name for name in sorted(told) if f'attack("{name}")' not in here] == []


def test_a_coordinator_reads_answers_in_plaintext_and_of_sealed_sums_nothing() -> None:
    found = attack("separation")
    assert found["coordinator, plaintext"] < 1e-10
    assert min(found["coordinator, sealed"], found["coordinator, sealed sum"]) > 0.9


def test_a_member_takes_two_operators_apart_and_of_one_there_are_others_with_the_same_transcript() -> None:
    found = attack("separation")
    assert found["member, two operators"] < 1e-8
    assert found["member, one operator"] > 0.5
    other = found["alternative"]
    assert other["transcript"] < 1e-12
    assert other["largest eigenvalue"] < 1.0, "it is the response of some site"
    assert other["distance of R_b"] > 0.5


def test_a_second_operator_on_the_same_instances_is_refused_before_it_is_summed() -> None:
    found = attack("second_operator")
    assert found["range missed"] < 1e-10
    for allowed in ("first", "again", "elsewhere"):
        assert found[allowed]["sums"] > 2
    for refused, instances in (("labels", 24), ("ridge", 24), ("instance", 23)):
        assert found[refused]["sums"] == 0
        assert f"{instances} of these instances were summed before" in found[refused]["reason"]


def test_a_fit_from_a_good_guess_ends_at_the_truth_and_from_random_starts_elsewhere() -> None:
    found = attack("fit")
    assert found["0.99"]["share"] > 0.0
    assert found["0"]["share"] == 0.0


def test_probe_signs_that_others_know_tell_each_sites_directions() -> None:
    found = attack("public_probes")
    assert found["signs by name"] < 1e-12
    assert found["signs by secret"] > 0.9


def test_a_column_of_two_values_is_recognised_in_the_span_so_strict_sites_refuse_it() -> None:
    found = attack("binary_columns")
    assert found["right guess"] < 1e-10 < 0.1 < found["best of 200 wrong guesses"]
    assert "columns of two values" in found["strict"]


def test_a_sum_without_one_site_is_refused() -> None:
    found = attack("differencing")
    assert "The difference of the two sums reveals the answers of d alone" in found["no consent"]["refused"]
    assert found["consented"]["off"] < 1e-10


def test_invented_sites_are_not_those_that_are_pinned() -> None:
    found = attack("invented_sites")
    assert found["peers not pinned"]["off"] < 1e-12
    assert "poses as that site" in found["pinned"]["refused"]


def test_colluding_sites_leave_the_sum_of_the_others() -> None:
    found = attack("colluding_sites")
    assert min(found[str(k)] for k in (1, 2)) > 0.3
    assert found["3"] < 1e-10


def test_a_plan_chosen_against_a_site_is_refused_by_the_numbers_key() -> None:
    found = attack("chosen_plan")
    for answers in ("plaintext", "secure"):  # masks hide nothing where nobody else has anything to say
        assert found[answers]["narrow"]["off"] < 1e-9
        assert found[answers]["strong"]["off"] < 0.1
        refused = found[answers]["narrow, policy"]["refused"]
        assert all(key in refused for key in ("bandwidth_min = 0.5", "ridge_min = 0.01"))
        assert found[answers]["flat"]["off"] < 1e-3
        assert "ridge_max = 1" in found[answers]["flat, policy"]["refused"]
        assert found[answers]["flat, border"]["off"] > 0.5
    assert "label_share_max = 0.95" in found["secure"]["strong, policy"]["refused"]
    assert found["secure"]["border"]["off"] > 0.2
    assert found["secure"]["honest"]["off"] > 0.9 > found["plaintext"]["honest"]["off"]
    assert (
        found["plaintext"]["border"]["off"] < 0.01
    )  # in the clear a label among the shared rows is told, whatever a policy says


def test_a_keyed_digest_confirms_no_guess_of_the_ids() -> None:
    assert attack("membership_of_an_id") == {"plain": True, "keyed": False}


def test_of_two_sites_each_has_the_other_s_predictions_and_of_three_none() -> None:
    found = attack("two_sites")
    assert found["two"] < 1e-8
    assert found["three"] > 0.3
    assert "fewer than 3" in found["strict"]


def test_residuals_tell_another_site_what_the_plan_names_and_no_more() -> None:
    found = attack("additive_residuals")
    assert found["open"]["labels"] < 1e-8
    assert found["grouped"]["means"] < 1e-7
    assert found["grouped"]["labels"] > 0.8 * found["grouped"]["without"]
    assert found["smoothed"]["labels"] > found["smoothed"]["without"]
    assert found["scores"]["labelled"] > 0.85 * found["scores"]["others"] > 0.5, (
        "the score knows a label hardly better than others"
    )


def test_a_ledger_whose_answers_were_taken_out_is_found_by_its_signatures() -> None:
    found = attack("rewritten_ledger")
    honest = found.pop("as it was")
    assert honest == {
        "answers in the chain": 10,
        "verified": "signed by both up to line 13",
        "with the record": "signed by both up to line 13",
    }
    assert {said["answers in the chain"] for said in found.values()} == {0}, "the chain alone shows nothing"
    assert "the chain was recomputed" in found["answers out"]["verified"]
    assert "not of this federation's authority" in found["heads of a stranger's key"]["verified"]
    for how in ("heads out too", "heads of the operator's own key"):
        assert found[how]["verified"] == "nothing is signed by both"
        assert "its last lines were removed" in found[how]["with the record"]
