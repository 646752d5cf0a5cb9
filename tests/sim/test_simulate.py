"""Whole simulated runs: masks and shared work change no bit, additive models are those of memory.
views.toml divides tables.
"""

import cProfile
import json
import pstats
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

from coordinator.transports import InProcess
from coreg_core.agreement.solvers import SOLVER_NAMES
from coreg_core.errors import BadData, Refused, UsageError
from coreg_core.messages import PlanRefused, Step
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.secure import cross_products
from coreg_core.terms import Iteration
from coreg_sim import closed_form as oracle
from coreg_sim.cli.app import app
from coreg_sim.closed_form import closed_form, closed_form_fault
from coreg_sim.problems import Problem, generated, partitioned, read_views
from coreg_sim.simulate import Hosted, SharedFold, SimulatedSite, plan_for, simulate
from site_agent.site_data import PrivateData

PROBLEM = generated(4, 8, 20, 2, seed=1)
TERMS = Agreement(form="semi-parametric", coupling=(0.1,))
PLANS = {name: (TERMS, Iteration(name, 1e-8, 1e-3)) for name in SOLVER_NAMES}


def bits(run):
    coefficients = [s.function.coef.tobytes() for s in (*run.solutions, *run.alone)]
    return run.outcome, run.rounds, run.certified_gap, coefficients


class Counting(SharedFold):
    def __init__(self):
        super().__init__()
        self.asked = Counter()
        self.made = Counter()

    def __call__(self, key, make):
        def counted():
            self.made[key] += 1
            return make()

        self.asked[key] += 1
        return super().__call__(key, counted)


def hosting(fold_of):
    @contextmanager
    def hosted(data):
        sites = {name: SimulatedSite(name, private, fold_of()) for name, private in data.items()}
        yield Hosted(InProcess(sites), lambda name: sites[name].result)

    return hosted


@pytest.mark.parametrize("name", PLANS)
def test_sealed_or_in_the_clear_and_worked_out_once_or_by_each_a_run_ends_on_the_same_bits(name):
    clear = simulate(PROBLEM, plan_for(PROBLEM, *PLANS[name]))
    assert clear.outcome is Outcome.CONVERGED
    sealed = plan_for(PROBLEM, *PLANS[name], aggregation="secure")
    counting = Counting()
    shared = simulate(PROBLEM, sealed, hosting=hosting(lambda: counting))
    apart = simulate(PROBLEM, sealed, hosting=hosting(SharedFold))
    assert bits(shared) == bits(apart) == bits(clear)
    assert shared.numbers_sent > clear.numbers_sent
    assert set(counting.made.values()) == {1}, "what all members work out alike is worked out once"
    assert set(counting.asked.values()) == {len(PROBLEM.sites)}


def calls_of_four_rounds(n_sites):
    """Function calls and turns of generators in four rounds among so many sites."""
    counts = []
    for rounds in (3, 7):  # the last one verifies
        problem = generated(n_sites, 4, 10, 2, seed=1)
        profile = cProfile.Profile()
        iteration = Iteration("conjugate-gradients", 0.0, 0.0, max_rounds=rounds)
        plan = plan_for(problem, Agreement(form="semi-parametric", coupling=(0.01,)), iteration)
        run = profile.runcall(simulate, problem, plan)
        assert run.outcome == Outcome.MAX_ROUNDS
        assert run.rounds == rounds
        counts.append(pstats.Stats(profile).total_calls)
    return counts[1] - counts[0]


def test_the_work_of_a_round_is_proportional_to_the_number_of_sites():
    """1,000 sites took 5 s a round: each built the solver again, whose terms have one number for
    each site.
    """
    calls_of_four_rounds(16)  # fills caches and imports
    ratio = calls_of_four_rounds(64) / calls_of_four_rounds(16)
    assert 2.0 < ratio < 4.4, (
        "4 where each site does the same; 16 where each does something for each other site"
    )


class Leaves(SimulatedSite):
    def handle(self, message):
        if isinstance(message, Step):
            return [PlanRefused(message.run, "a step that this site did not expect.")]
        return super().handle(message)


def test_a_site_that_refuses_at_a_step_ends_a_simulation_at_once_and_is_its_reason():
    """It was waited for as a site that is slow: a day."""

    @contextmanager
    def one_leaves(data):
        first = min(data)
        kinds = dict.fromkeys(data, SimulatedSite) | {first: Leaves}
        sites = {name: kinds[name](name, data[name], SharedFold()) for name in data}
        yield Hosted(InProcess(sites), lambda name: sites[name].result)

    with pytest.raises(Refused, match="a step that this site did not expect"):
        simulate(PROBLEM, plan_for(PROBLEM, *PLANS["conjugate-gradients"]), hosting=one_leaves)


@pytest.mark.parametrize(
    ("sites", "unlabelled", "form", "scale", "most"),
    [
        (4, 50_000, "semi-parametric", 1.0, 50),
        (16, 300, "exact", 1.0, 35),
        (16, 300, "exact", 1000.0, 35),
    ],
)
def test_a_run_with_default_tolerances_ends_well_and_soon_in_any_unit(
    sites, unlabelled, form, scale, most
):
    """148 and 127 rounds, both STAGNATED, when the tolerance had the unit of the labels."""
    problem = generated(sites, 50, unlabelled, 5, seed=0)
    scaled = {name: replace(data, y=scale * data.y) for name, data in problem.sites.items()}
    problem = replace(problem, sites=scaled)
    plan = plan_for(problem, Agreement(form=form), Iteration())
    run = simulate(problem, plan)
    exact = closed_form(problem, plan)
    assert run.outcome == Outcome.CONVERGED
    assert run.rounds <= most
    centred = np.concatenate([data.y - data.y.mean() for data in scaled.values()])
    assert run.certified_prediction_bound <= 1e-6 * np.sqrt(unlabelled) * centred.std()
    # Q is a sum that is rounded: a few hundred eps of it.
    assert run.objective - exact.objective <= run.certified_gap + 1e-13 * exact.objective
    error = np.linalg.norm(run.predictions - exact.predictions, axis=1).max()
    assert error <= run.certified_prediction_bound + 1e-11 * scale


def finished(*arguments):
    """The figures of a run."""
    done = sim("run", "--objective", "agreement", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output.splitlines()[-1])


@pytest.mark.parametrize("form", ["exact", "semi-parametric", "linear"])
def test_an_agreement_prints_its_distance_from_the_centralised_closed_form(form):
    """Nothing was printed but the bound of the certificate."""
    options = ["--sites", "3", "--unlabelled", "100", "--form", form, "--tolerance", "1e-13"]
    found = finished(*options)
    assert found["closed_form_distance"] < 1e-6
    printed = sim("run", "--objective", "agreement", *options).output
    distance = f"{found['closed_form_distance']:.0e} standard deviations of the labels"
    assert "from the centralised closed form" in printed
    assert distance in printed


def test_a_run_that_stops_early_is_far_from_the_closed_form():
    options = ["--objective", "agreement", "--max-rounds", "1", "--unlabelled", "100", "--json"]
    found = json.loads(sim("run", *options).output.splitlines()[-1])
    assert found["stop"] == "MAX_ROUNDS"
    assert found["closed_form_distance"] > 1e-5


def test_the_closed_form_of_all_couplings_is_that_of_each():
    couplings = (0.0, 0.01, 0.1)
    together = closed_form(PROBLEM, plan_for(PROBLEM, Agreement(coupling=couplings)))
    for at, coupling in enumerate(couplings):
        exact = closed_form(PROBLEM, plan_for(PROBLEM, Agreement(coupling=(coupling,))))
        own = [solution.prediction for solution in together.solutions[at]]
        assert_allclose(own, exact.predictions, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "sites", "unlabelled", "fits"),
    [
        ("exact", 4, 5_000, True),
        ("exact", 4, 20_000, False),
        ("semi-parametric", 100, 10_000, True),
        ("semi-parametric", 1_000, 50_000, False),
        ("linear", 1_000, 10_000, True),
    ],
)
def test_a_closed_form_that_does_not_fit_is_not_computed(form, sites, unlabelled, fits):
    rows = np.zeros((20, 5))
    shared = np.broadcast_to(np.zeros(5), (unlabelled, 5))  # of one row in memory
    data = PrivateData(rows, np.zeros(20), shared, "simulated")
    problem = Problem({f"s{v}": data for v in range(sites)}, (), np.zeros(0))
    fault = closed_form_fault(problem, plan_for(problem, Agreement(form=form)))
    assert ("was not computed: it needs about" not in fault) == fits


def test_a_run_says_that_its_closed_form_does_not_fit(monkeypatch):
    monkeypatch.setattr(oracle, "MEMORY", 1e-6)
    options = ["run", "--objective", "agreement", "--unlabelled", "50"]
    assert "closed form was not computed: it needs about" in sim(*options).output
    figures = json.loads(sim(*options, "--json").output.splitlines()[-1])
    assert "closed_form_distance" not in figures


@pytest.mark.parametrize("sites", [2, 3, 4])
def test_the_generated_data_of_an_agreement_are_such_that_it_helps(sites):
    """On the data before, joining made the sites worse at every setting of the command."""
    changes = []
    for seed in range(5):
        found = finished("--sites", str(sites), "--unlabelled", "200", "--seed", str(seed))
        alone = np.mean(found["rmse_sites_alone"])
        changes.append(np.mean(found["rmse_sites"]) / alone - 1)
    assert np.mean(changes) < -0.03
    assert max(changes) < 0.01


# --- views.toml -----------------------------------------------------------------------------------


def views_of(folder, text):
    rows = np.random.default_rng(0).normal(size=(90, 3))
    lines = []
    for a, b, c in rows:
        colour = "blue"
        if c > 0:
            colour = "red"
        lines.append(f"{a:.4f},{b:.4f},{colour},{a + b:.4f}")
    (folder / "t.csv").write_text("\n".join(["a,b,kind,y", *lines]) + "\n")
    (folder / "views.toml").write_text(f'data = "t.csv"\ntarget = "y"\n{text}')
    return folder / "views.toml"


SITES = (
    '[sites.two]\ncolumns = ["b", "kind"]\ncategorical = ["kind"]\n[sites.one]\ncolumns = ["a"]\n'
)


def test_columns_are_the_sites_that_the_file_says_and_rows_are_drawn(tmp_path):
    views = read_views(views_of(tmp_path, SITES))
    problem = partitioned(views, 10, 30, seed=1)
    assert list(problem.sites) == ["one", "two"]
    assert [data.X.shape for data in problem.sites.values()] == [(10, 1), (10, 3)]
    assert [data.Z.shape for data in problem.sites.values()] == [(30, 1), (30, 3)]
    assert [X.shape for X in problem.held_out] == [(40, 1), (40, 3)]
    assert len(problem.held_out_y) == 40
    assert not np.array_equal(
        partitioned(views, 10, 30, seed=2).sites["one"].y, problem.sites["one"].y
    )
    assert len({y for data in problem.sites.values() for y in data.y}) == 20, (
        "each site has its own rows"
    )
    assert len(partitioned(views, 10, None, seed=1).sites["one"].Z) == 46
    with pytest.raises(BadData, match="90 rows with a target are too few for 2 x 40"):
        partitioned(views, 40, 30, seed=1)
    told = sim(
        "run",
        "--objective",
        "agreement",
        "--views",
        str(tmp_path / "views.toml"),
        "--labelled",
        "10",
        "--json",
    )
    assert json.loads(told.stdout.splitlines()[-1])["rounds"], told.output
    apart, common = (
        problem,
        partitioned(views, 10, 30, seed=1, common=True),
    )  # labelled rows can be shared too
    for name, data in common.sites.items():
        assert len(data.Z) == 30 + 2 * 10
        assert len(set(data.positions.tolist())) == 10
        assert_array_equal(data.Z[data.positions], data.X)
        assert_array_equal(data.y, apart.sites[name].y)
        assert set(apart.sites[name].positions.tolist()) == {-1}


def test_a_wrong_views_file_is_reported(tmp_path):
    for text, error, says in (
        ("", UsageError, "sites: a section is needed"),
        ('colour = "red"\n' + SITES, UsageError, "colour: unknown key"),
        ('[sites.one]\ncolumns = ["A"]\n', BadData, "Did you mean 'a'"),
        ('[sites.one]\ncolumns = ["y"]\n', BadData, "columns of one contain the target"),
    ):
        with pytest.raises(error, match=says):
            partitioned(read_views(views_of(tmp_path, text)), 10, None, seed=0)


SMALL = ["--sites", "3", "--labelled", "50", "--unlabelled", "150", "--views", "2"]


@pytest.fixture
def short(monkeypatch):
    """A short secret gives the same sums."""
    monkeypatch.setattr(cross_products, "SECRET_ROWS", 64)
    monkeypatch.setattr(cross_products, "RANDOM_ROWS", 320)


def sim(*arguments):
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.usefixtures("short")
def test_a_run_prints_each_site_s_errors_and_forecasts():
    done = sim("run", *SMALL)  # the default objective
    assert done.exit_code == 0, done.output
    heading, *rows = done.output.splitlines()[-4:]
    assert (
        " ".join(heading.split())
        == "labels local joined change forecast score change forecast recommended"
    )
    assert [row.split()[:2] for row in rows] == [[f"site-{v}", "50"] for v in range(3)]
    last = json.loads(sim("run", *SMALL, "--json").output.splitlines()[-1])
    assert last["event"] == "finished"
    assert last["solver"] == "additive"
    assert last["stop"] == "CONVERGED"
    assert last["bytes_sent"] > 0
    for site in last["sites"].values():
        assert site["rmse"]["score"] < min(site["rmse"]["joined"], site["rmse"]["local"])
        assert set(site["forecast"]) == {"joined", "score"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--coupling", "0.1"], "--coupling needs --objective agreement"),
        (["--sites", "39"], "39 sites: an additive training has at most 38"),
        (
            ["--sites", "3", "--labelled", "40"],
            "label 30 more of the individuals that all sites share",
        ),
    ],
)
def test_options_that_do_not_go_together_and_too_few_labels_are_told(options, says):
    error = sim("run", *options).exception
    assert isinstance(error, UsageError | Refused)
    assert says in str(error)
