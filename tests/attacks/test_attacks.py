"""Attacks of docs/research/attacks: each works only where the threat model says that it does."""

import json
import os
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # of many small matrices
EXACT = 1e-12  # of docs/concepts/privacy.md
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "research" / "attacks"


# Forks for each attack: importing takes four seconds.
SERVER = """
import ast, json, os, sys, traceback
import sklearn.ensemble, training

for line in sys.stdin:
    name, given = ast.literal_eval(line)
    if os.fork() == 0:
        try:
            told = {"found": __import__(name).attack(**given)}
        except BaseException:
            told = {"error": traceback.format_exc()}
        print(json.dumps(told, default=float), flush=True)
        os._exit(0)
    os.wait()
"""


@cache
def _server() -> subprocess.Popen[str]:
    """A process without the suite's checks of shapes, which take minutes here."""
    command = [sys.executable, "-W", "error", "-c", SERVER]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=FOLDER, env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True
    )


@cache
def attack(name: str, **given: Any) -> dict[str, Any]:
    """What the script's own function returns."""
    server = _server()
    assert server.stdin
    assert server.stdout
    server.stdin.write(f"{(name, given)}\n")
    server.stdin.flush()
    told: dict[str, dict[str, Any]] = json.loads(server.stdout.readline())
    assert "error" not in told, told["error"]
    return told["found"]


def test_every_script_of_the_folder_is_run_here() -> None:
    told = {path.stem for path in FOLDER.glob("*.py")} - {"federation", "training"}
    here = Path(__file__).read_text()
    assert [name for name in sorted(told) if f'attack("{name}"' not in here] == []


def test_a_coordinator_reads_answers_in_plaintext_and_of_sealed_sums_nothing() -> None:
    found = attack("separation")
    assert found["coordinator, plaintext"] < EXACT
    assert [found["coordinator, sealed"], found["coordinator, sealed sum"]] == pytest.approx(
        [1.0, 1.0], abs=0.01
    )


def test_a_member_takes_two_operators_apart_but_one_has_others_with_the_same_transcript() -> None:
    found = attack("separation")
    assert found["member, two operators"] < EXACT
    assert found["member, one operator"] > 0.5
    other = found["alternative"]
    assert other["transcript"] < EXACT
    assert other["largest eigenvalue"] < 1.0, "it is the response of some site"
    assert other["distance of R_b"] == pytest.approx(0.69, abs=0.05)


def test_a_fit_from_a_good_guess_ends_at_the_truth_and_from_random_starts_elsewhere() -> None:
    assert attack("fit", correlations=(0.99,))["0.99"]["share"] == pytest.approx(19 / 20, abs=0.1)
    assert attack("fit", starts=2, correlations=(0.0,))["0"]["share"] == 0.0


def test_a_column_of_two_values_is_recognised_in_the_span() -> None:
    found = attack("binary_columns")
    assert found["right guess"] < EXACT < 0.45 < found["best of 200 wrong guesses"]


def test_a_sum_without_one_site_is_refused() -> None:
    found = attack("differencing")
    assert (
        "The difference of the two sums reveals the answers of d alone"
        in found["no consent"]["refused"]
    )
    assert found["consented"]["error"] < EXACT


def test_invented_sites_are_not_those_whose_words_were_compared() -> None:
    found = attack("invented_sites")
    assert found["words not compared"]["error"] < EXACT
    assert "poses as that site" in found["compared"]["refused"]


def test_a_swapped_key_and_an_added_member_change_the_words_and_the_sealed_run_is_refused() -> None:
    found = attack("swapped_key")
    assert found["honest"]["words"] == 1
    for lie, words, news, reason in (
        ("swapped", 2, "another key than before: b", "another party poses as that site"),
        (
            "added",
            1,
            "e is new",
            "the key of e is not confirmed here",
        ),  # to all sites: no operator knows its name
    ):
        told = found[lie]
        assert told["words"] == words
        assert told["words, a hears the truth"] == 2
        assert not told["settled"]
        assert told["news"] == news
        assert reason in told["refused"]
        unseen = told["refused, words taken unseen"]
        assert unseen == {"swapped": "not settled", "added": ""}[lie], (
            "--accept-words takes new sites, no changed key"
        )


def test_colluding_sites_leave_the_sum_of_the_others() -> None:
    found = attack("colluding_sites")
    assert min(found[str(k)] for k in (1, 2)) > 0.3
    assert found["3"] < EXACT


def test_a_plan_chosen_against_a_site_is_refused_by_its_number() -> None:
    found = attack("chosen_plan")
    for answers in (
        "plaintext",
        "secure",
    ):  # masks hide nothing where nobody else has anything to say
        assert found[answers]["narrow"]["error"] < 1e-9
        assert found[answers]["strong"]["error"] < 0.1
        refused = found[answers]["narrow, policy"]["refused"]
        assert all(limit in refused for limit in ("is below 0.5 times", "is below 0.01 times"))
        assert found[answers]["flat"]["error"] < 1e-3
        assert "is above 1 times" in found[answers]["flat, policy"]["refused"]
        assert found[answers]["flat, border"]["error"] > 0.5
        assert "coupling = [50000.0] is above 100" in found[answers]["strong, policy"]["refused"]
    assert "make up more than 0.95" in found["secure"]["strongest, policy"]["refused"]
    assert found["secure"]["border"]["error"] == pytest.approx(0.42, abs=0.03)
    assert (
        1.01
        > found["secure"]["honest"]["error"]
        > 0.97
        > 0.9
        > found["plaintext"]["honest"]["error"]
    )
    assert found["plaintext"]["border"]["error"] < 0.01, (
        "a label among the shared rows is told in the clear"
    )


def test_a_keyed_digest_confirms_no_guess_of_the_ids() -> None:
    assert attack("membership_of_an_id") == {"plain": True, "keyed": False}


def test_of_two_sites_each_has_the_other_s_predictions_and_of_three_none() -> None:
    found = attack("two_sites")
    assert found["two"] < EXACT
    assert found["three"] > 0.3
    assert "min_sites = 2 is below min_sites = 3" in found["refused"]


def test_members_read_of_labels_and_features_the_part_in_the_span_of_their_own() -> None:
    found = attack("second_moments")
    for labelled, d, beyond in ((50, 15, 0.12), (200, 30, 0.08)):
        told = found[f"3 x {labelled}, 0 and 0"]
        share = d / (2 * labelled)
        assert 0.5 * share < told["one"] < 2.0 * share
        assert 1.5 * share < told["all but one"] < 1.0, "twice the features, half the labels"
        assert told["features"] - told["anyway"] == pytest.approx(beyond, abs=0.03)
    assert [found[f"3 x {n}, 0.01 and 0.5"]["one"] for n in (50, 200)] == pytest.approx(
        [0.14, 0.03], abs=0.05
    )
    told = [
        found[f"{n}, 0.01 and {noise}"]["all but one"]
        for n in ("3 x 50", "8 x 20")
        for noise in ("0.5", "1")
    ]
    assert told == pytest.approx([0.42, 0.28, 0.84, 0.6], abs=0.08), (
        "only label noise limits seven of eight"
    )


def test_few_individuals_without_labels_are_in_no_sum() -> None:
    few, many = (attack("second_moments")[f"{m} without labels"] for m in (10, 180))
    assert few["features"] > few["anyway"] + 0.3
    assert few["summed"] == 0
    assert many["features"] < many["anyway"] + 0.2
    assert many["summed"] == 180


def test_sums_over_few_individuals_tell_nothing_of_their_features() -> None:
    told = attack("small_groups")
    assert max(told.values()) < 0.3, "0.97 where a sum is over one individual"


def test_the_scores_that_end_a_training_are_of_individuals_without_a_label() -> None:
    found = attack("scores_at_the_end")
    told = [figures["labels"] for figures in found.values()]
    assert min(told) > 0.3, "so no one gets scores of others' labelled individuals"
    assert max(figures["features, one"] for figures in found.values()) < 0.35
    assert found["5 x 60"]["features, one"] < 0.15


def test_labels_that_leave_between_two_trainings_are_read_unless_many_leave() -> None:
    found = attack("changed_rows")
    assert min(found["share read"][k] for k in ("1", "10", "20")) > 0.999
    assert found["share read"]["300"] < 0.3
    refused = found["second training"]["20"]
    allowed = found["second training"]["300"]
    assert "20 labelled rows differ from those of an earlier training" in refused
    assert "None or at least 300 have to differ" in refused
    assert "second moments of 3 sites" in allowed


def test_a_label_that_a_member_claims_and_takes_back_discloses_features_so_the_row_is_another() -> (
    None
):
    found = attack("claimed_bits")
    assert found["exact"] > 0.999
    assert found["default"] > 0.9
    assert "1 labelled rows differ from those of an earlier training" in found["second training"]


def test_a_member_that_lies_about_its_labels_chooses_the_model() -> None:
    found = attack("chosen_model")
    assert found["honest"] < 0.5 < 0.95 < found["chosen"]


def test_scores_with_sites_missing_disclose_features_and_each_individual_has_five() -> None:
    found = attack("scores_with_sites_missing")
    for who, how in product(("one", "all"), ("honest", "chosen")):
        free, limited = (found[f"6 sites, {who}, {how}, {limit}"] for limit in (10_000, 5))
        steps = 78
        if how == "honest":
            steps = 26
        assert len(free["told"]) == 1 + steps
        assert free["refused"] == []
        assert limited["told"] == free["told"][:6], "the same scores, until the sixth"
        assert len(limited["refused"]) >= 6, "and again, when it is asked again"
        assert all(
            "scored by 5 models or sets of sites (models_per_individual" in why
            for why in limited["refused"]
        )
        assert free["told"][1] > free["told"][0]
    chosen, honest = (found[f"6 sites, all, {how}, 10000"]["told"] for how in ("chosen", "honest"))
    assert chosen[0] < 0.4 < 0.55 < chosen[5] < 0.88 < 0.98 < chosen[-1], (
        "five, or enough equations; of random trainings 0.68 to 0.75 with five"
    )
    assert honest[5] + 0.02 < honest[-1] < 0.9
    assert found["6 sites, one, chosen, 10000"]["told"][-1] < 0.92, (
        "the parts of four honest sites are mixed"
    )


def test_labels_of_yes_and_no_are_found_from_exact_sums_and_not_under_label_noise() -> None:
    noises = ((0.1, 0.0), (0.1, 0.5))
    found = attack("integer_labels", tables=2, noises=noises, epsilons=(4.0,))
    assert found == {
        "0.1 and 0": 2,
        "0.1 and 0.5": 0,
        "0.1 and ε = 4": 2,
    }, "sums of labels have no noise but that of the labels, and flipped labels are integers"


def test_randomised_labels_are_guessed_no_more_often_than_epsilon_allows() -> None:
    found = attack("label_privacy")
    chance = 4 * (0.25 / 50_000) ** 0.5  # of a share of so many labels
    for epsilon in (1.0, 2.0, 4.0):
        values = found[f"{epsilon:g}"]
        assert values["guessed"] == pytest.approx(values["bound"], abs=chance)
        assert values["guessed"] < values["guessed of three"] < values["bound of three"] + chance
        assert 0.8 * epsilon < values["ratio of yes/no"] <= epsilon, "certain, and not exceeded"
        assert 0.8 * epsilon < values["ratio of numbers"] <= epsilon


def test_a_ledger_whose_answers_were_taken_out_is_found_by_its_signatures() -> None:
    found = attack("rewritten_ledger")
    honest = found.pop("as it was")
    assert honest == {
        "answers in the chain": 10,
        "verified": "signed by both up to line 13",
        "with the record": "signed by both up to line 13",
    }
    assert {said["answers in the chain"] for said in found.values()} == {0}, (
        "the chain alone shows nothing"
    )
    assert "the chain was recomputed" in found["answers out"]["verified"]
    assert "not of this federation's authority" in found["heads of a stranger's key"]["verified"]
    for how in ("heads out too", "heads of the operator's own key"):
        assert found[how]["verified"] == "nothing is signed by both"
        assert "its last lines were removed" in found[how]["with the record"]
