"""federation.toml: names that survive the wire, sums that are possible, and the samples that we
ship.
"""

import json
import re
from pathlib import Path

import pytest
from machine.tiny import against

from coordinator.cli.options import planned
from coordinator.config.federation_toml import read_configuration
from coordinator.config.study_toml import read_study
from coordinator.service.create import Choices, file_of
from coreg_core.errors import UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.plan import OBJECTIVES
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.config.settings import AGENT, read_settings
from site_agent.consent.policy import Policy, read_policy, template

ROOT = Path(__file__).resolve().parents[2]
NEW_FILE = file_of(Choices(), ["site-a", "site-b", "site-c"])


def configuration(folder, text, name="x", sites='["a", "b", "c"]'):
    path = folder / "federation.toml"
    path.write_text(f'[federation]\nname = "{name}"\nsites = {sites}\n{text}', encoding="utf-8")
    return read_configuration(path)


@pytest.mark.parametrize("name", ["a\\tb", "a\\u001b[2J", "a\\u200bb", "   ", "", "x" * 201])
def test_a_federations_name_is_one_line_that_can_be_read(tmp_path, name):
    """A character that cannot be printed is replaced on the wire: every site would see another plan
    than was digested.
    """
    with pytest.raises(UsageError, match=r"federation\.name = .*1 to 200 printable characters"):
        configuration(tmp_path, "", name)


@pytest.mark.parametrize(
    ("sites", "text", "words"),
    [
        ('["a"]', "", "sealed sums need 2 sites at least"),
        ('["a", "b", "c"]', "min_sites = 1\n", "sealed sums need 2 sites at least"),
        (str([f"s{i:02}" for i in range(65)]), "", "sealed sums have at most 64 sites"),
    ],
)
def test_a_plan_that_sums_cannot_serve_is_refused_with_what_to_do(tmp_path, sites, text, words):
    with pytest.raises(UsageError, match=f"{words}.*"):
        configuration(tmp_path, f'{text}[privacy]\naggregation = "secure"\n', sites=sites)
    with pytest.raises(UsageError, match="align = false"):
        configuration(tmp_path, f'{text}[privacy]\naggregation = "plaintext"\n', sites=sites)
    clear = f'{text}[privacy]\naggregation = "plaintext"\n[alignment]\nalign = false\n'
    assert not configuration(tmp_path, clear, sites=sites).plan().masked


def test_label_epsilon_of_numbers_needs_a_range(tmp_path):
    model = '[model]\nobjective = "additive"\nlabel_epsilon = 8\n'
    with pytest.raises(UsageError, match=r"label_epsilon needs label_range = \[LOWEST, HIGHEST\]"):
        configuration(tmp_path, model)
    with pytest.raises(UsageError, match="the lowest label, and a higher one"):
        configuration(tmp_path, f"{model}label_range = [1, 1]\n")
    numbers = configuration(tmp_path, f"{model}label_range = [-1, 3]\n").objective
    assert numbers.label_epsilon == 8.0
    assert numbers.label_range == (-1.0, 3.0)
    assert configuration(tmp_path, f'{model}task = "classification"\n').objective.private_labels


def test_every_objective_is_chosen_under_model_but_the_alignment(tmp_path):
    """It has a section of its own: editors offer its keys there, and require none."""
    for name in OBJECTIVES.keys() - {"alignment"}:
        assert configuration(tmp_path, f'[model]\nobjective = "{name}"\n').objective.name == name
    with pytest.raises(UsageError, match=r"model.* objective"):
        configuration(tmp_path, '[model]\nobjective = "alignment"\n')
    schema = json.loads((ROOT / "docs" / "reference" / "schemas" / "federation.json").read_text())
    own = schema["definitions"]["AlignmentSection"]
    assert not schema["properties"]["model"]["properties"].keys() & own["properties"].keys()
    assert "required" not in own


def test_the_choices_of_init_are_keys_of_the_new_file(tmp_path):
    choices = Choices(name="$sites 😀", target='the "y"', id="ID", task="classification")
    (tmp_path / "federation.toml").write_text(file_of(choices, ["a", "b"]), encoding="utf-8")
    plan = read_configuration(tmp_path / "federation.toml").plan()
    assert plan.federation == "$sites 😀"
    assert plan.target == 'the "y"'
    assert plan.id == "ID"
    assert plan.objective == Additive(task="classification")


def test_the_sample_files_show_the_defaults_and_are_read(tmp_path):
    (tmp_path / "federation.toml").write_text(NEW_FILE)
    plan = read_configuration(tmp_path / "federation.toml").plan()
    assert plan.membership == Membership(("site-a", "site-b", "site-c"), 3)
    assert plan.objective == Additive()
    assert plan.iteration == Iteration()
    assert plan.privacy == Privacy("secure")
    # Commented keys are keys too.
    additive = 'objective = "additive"\n', '# task = "regression"\n'
    text = NEW_FILE.replace(additive[0], "").replace(additive[1], "")
    (tmp_path / "all.toml").write_text(re.sub(r"(?m)^# (?=\w+ = )", "", text))
    agreement = read_configuration(tmp_path / "all.toml").plan()
    assert agreement.target == "outcome"
    assert agreement.id == "patient"
    assert agreement.objective == Agreement(coupling=(0.0, 0.001, 0.01, 0.1))
    assert against(Policy(), agreement) is None
    assert plan.align == Alignment()
    assert against(Policy(), plan) is None
    refused = against(Policy(alignment=False, max_alignment_ids=10), plan) or ""
    assert "alignment = false" in refused
    assert "max_alignment_ids = 10" in refused


def test_the_starter_files_are_read_and_their_comments_are_the_defaults(tmp_path):
    (tmp_path / "agent.toml").write_text(AGENT.replace("COORDINATOR", "fed.example:7600"))
    (tmp_path / "policy.toml").write_text(template())
    settings = read_settings(
        tmp_path / "agent.toml", {"data": "local.csv"}, ("data", "coordinator")
    )
    assert settings.coordinator == "fed.example:7600"
    assert settings.policy == tmp_path / "policy.toml"
    own, table, service = re.split("# This site's table|# Only for `coreg-agent serve`", AGENT)
    for name, text in (("one", own + "#" + table), ("service", own + "#" + service)):
        (tmp_path / f"{name}.toml").write_text(re.sub(r"(?m)^# (?=\w+ = |\[data\.)", "", text))
        assert len(read_settings(tmp_path / f"{name}.toml", {}, ("data", "coordinator")).data) == 1
    chosen = read_policy(tmp_path / "policy.toml")
    assert chosen == Policy()
    commented = re.findall(r"^# (\w+ = .*)$", template(), re.MULTILINE)
    (tmp_path / "all.toml").write_text("\n".join(commented))
    every = read_policy(tmp_path / "all.toml")
    assert every == chosen.model_copy(update={"ids_secret": every.ids_secret}), "as commented"
    assert set(Policy.model_fields) <= {line.partition(" ")[0] for line in commented}


@pytest.mark.parametrize(
    "model", ["", "[model]\n", '[model]\nobjective = "agreement"\n', '[model]\nform = "linear"\n']
)
def test_a_run_without_an_objective_is_refused_where_it_is_asked_for(tmp_path, model):
    """One λ for all sites, the plan's default, harms a fifth of the sites of the study."""
    (tmp_path / "federation.toml").write_text(
        f'[federation]\nname = "f"\nsites = ["a", "b", "c"]\n{model}'
    )
    (tmp_path / "study.toml").write_text(f'[study]\nname = "s"\n{model}')
    federation = read_configuration(
        tmp_path / "federation.toml"
    )  # a coordinator that serves studies needs no model
    wanted = r'names no objective. Write objective = "additive" \(recommended\)'
    with pytest.raises(UsageError, match=wanted):
        planned(federation, None)
    with pytest.raises(UsageError, match=wanted):
        planned(federation, tmp_path / "study.toml")
    for chosen in ("coupling = 0.01", 'objective = "additive"'):
        (tmp_path / "study.toml").write_text(f'[study]\nname = "s"\n[model]\n{chosen}\n')
        assert planned(federation, tmp_path / "study.toml").study == "s"
    terms = (
        '[model]\nobjective = "additive"\n[privacy]\nmembership_changes = true\n[alignment]\nids ='
        ' "exact"\n'
    )
    (tmp_path / "federation.toml").write_text(
        f'[federation]\nname = "f"\nsites = ["a", "b"]\n{terms}'
    )
    (tmp_path / "study.toml").write_text('[study]\nname = "s"\n')
    plan = planned(read_configuration(tmp_path / "federation.toml"), tmp_path / "study.toml")
    assert plan.objective == Additive(), "no other section"
    assert plan.privacy == Privacy(), "no other section"
    assert plan.align == Alignment(), "no other section"


@pytest.mark.parametrize("section", ["[study]", "[model]", "[solver]", "[privacy]"])
def test_a_key_that_is_a_section_is_answered_with_its_keys(tmp_path, section):
    sections = {"[study]": 'name = "s"\n', "[model]": 'objective = "agreement"\ncoupling = 0.1\n'}
    sections[section] = sections.get(section, "") + 'solver = "algorithm-1"\n'
    text = "".join(f"{name}\n{keys}" for name, keys in sections.items())
    (tmp_path / "study.toml").write_text(text)
    place = section.strip("[]")
    with pytest.raises(UsageError) as error:
        read_study(tmp_path / "study.toml")
    expected = f"{place}.solver: this is a section: write [solver], and below it its keys (name,"
    assert expected in str(error.value)
    if section != "[study]":
        terms = text.partition("[model]")[2]
        with pytest.raises(UsageError, match=r"write \[solver\], and below it"):
            configuration(tmp_path, f"[model]{terms}")


def test_misspelt_keys_are_answered_with_what_was_meant(tmp_path):
    def fault(read, text):
        (tmp_path / "file.toml").write_text(text)
        with pytest.raises(UsageError) as error:
            read(tmp_path / "file.toml")
        return str(error.value)

    sites = '[federation]\nname = "f"\nsites = ["a", "b", "c"]\n'
    assert "did you mean timeouts?" in fault(read_configuration, f"{sites}[timeout]\njoin = 1\n")
    assert "did you mean approval?" in fault(
        read_configuration, f"{sites}[timeouts]\naproval = 1\n"
    )
    assert "did you mean study?" in fault(read_study, '[studdy]\nname = "s"\n')
    for text in ("", 'study = "s"\n'):
        assert "a section is needed: write [study], and its keys below it" in fault(
            read_study, text
        )
    assert "did you mean data?" in fault(read_study, '[study]\nname = "s"\ndatas = "d"\n')
    study = '[study]\nname = "s"\n[model]\n'
    assert "It should be 'additive' (recommended)" in fault(
        read_study, f"{study}least_rows = 150\n"
    )
    assert "did you mean noise?" in fault(
        read_study, f'{study}objective = "additive"\nnoize = 0.1\n'
    )
    assert "did you mean scoring?" in fault(read_policy, "scorring = true\n")
    assert "did you mean approval?" in fault(
        lambda path: read_settings(path, {}), 'aproval = "ask"\n'
    )
