"""An exchange of second moments through the real machines: what sites end with, and what a
coordinator cannot do.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from core.test_exchange import short, shorten  # noqa: F401 - short secrets
from machine.tiny import Pump, TinySite, allowing, altered, site_with
from numpy.testing import assert_allclose, assert_array_equal

from coreg_core.additive.channel import ExactSums
from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.missing_features import ScoreWeights
from coreg_core.additive.training import run_in_memory
from coreg_core.errors import Refused
from coreg_core.messages import Answer, Step, ToSite, Words
from coreg_core.objectives.additive import Additive
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.disclosure import Disclosure, row_set
from site_agent.machine.additive import AdditiveComputation, gain_byte, gain_of
from site_agent.machine.results import AdditiveResult
from site_agent.models import findings, report
from site_agent.site_data import PrivateData

# the steps that carry them, where no site has private rows
SUMMARIES = 2
MESSAGES = 3
SUMS = 4
EXACT = Additive(noise=0.0, label_noise=0.0)
LINEAR = replace(EXACT, kernel="linear")  # no forest to grow


def plan_of(terms: Additive = EXACT, sites: str = "abc", run: str = "run-1") -> Plan:
    membership = Membership(tuple(sites), len(sites))
    return Plan(run, "tiny", membership, terms, Iteration(), Privacy())


def rows_of(
    sites: str, labelled: int = 60, unlabelled: int = 200, private: int = 0, first: int = 0
) -> dict[str, PrivateData]:
    """A target that is a sum of parts; each site has labels of its own common individuals, and of
    private ones.
    """
    g = np.random.default_rng(0)
    n_common = labelled * len(sites) + unlabelled
    individuals = n_common + private * len(sites)
    z = g.normal(size=(individuals, 4))
    tables = []
    for _ in sites:
        signal = z @ g.normal(size=(4, 3))
        tables.append(signal + g.normal(size=(individuals, 3)))
    y = 0.3 * g.normal(size=individuals)
    for x in tables:
        y += np.sin(x[:, 0]) + 0.5 * x[:, 1]
    ids = tuple(f"p{i}" for i in range(n_common))
    data = {}
    for v, name in enumerate(sites):
        common = first + v * labelled + np.arange(labelled)
        own = n_common + v * private + np.arange(private)
        rows = np.concatenate([common, own])
        positions = np.where(rows < n_common, rows, -1)
        X = tables[v]
        salt = name.encode()
        Z = X[:n_common]
        data[name] = PrivateData(X[rows], y[rows], Z, "digest", salt, positions, ids=ids)
    return data


def federation(data: dict[str, PrivateData], plan: Plan, **rules: Any) -> Pump:
    sites = {name: site_with(name, rows, **rules) for name, rows in data.items()}
    return Pump(plan, sites).join().run()


def exchange(site: TinySite) -> Any:
    return site.computation.exchange


def over_exact_sums(exchanges: list[SiteExchange]) -> list[SiteExchange]:
    """The same exchange with sums of float64."""
    exact = []
    for v, sealed in enumerate(exchanges):
        site = SiteExchange(
            v, sealed.start, EXACT, ExactSums(), seed=sealed.seed, random_bytes=os.urandom
        )
        exact.append(site)
    start = exchanges[0].start
    normals = np.zeros((1, start.n_common))
    run_in_memory(exact, exchanges[0].terms, [normals] * len(exchanges))
    return exact


CASES = {
    "three": ("abc", 0),
    "private": ("abc", 40),
    "two": ("ab", 30),
    "five": ("abcde", 0),
}


@pytest.fixture(scope="module", params=CASES)
def session(request: pytest.FixtureRequest) -> tuple[Pump, list[SiteExchange]]:
    """A session, and each site's exchange."""
    sites, private = CASES[request.param]
    labelled = 100 if sites == "ab" else 60
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        pump = federation(rows_of(sites, labelled, private=private), plan_of(sites=sites))
    assert pump.outcome is Outcome.CONVERGED, pump.end
    return pump, [exchange(pump.sites[name]) for name in sites]


def weights_of(site: SiteExchange) -> np.ndarray:
    """Of the score of all sites."""
    everyone = range(site.terms.n_sites)
    return ScoreWeights.of(site.fits[0]).of_sites(everyone)


def test_all_sites_opened_the_same_sums(session: tuple[Pump, list[SiteExchange]]) -> None:
    first, *others = session[1]
    for site in others:
        assert_array_equal(site.fits[0].beta, first.fits[0].beta)


def test_a_session_ends_as_memory_does(session: tuple[Pump, list[SiteExchange]]) -> None:
    _, exchanges = session
    exact = over_exact_sums(exchanges)
    terms = exchanges[0].terms
    features = [site.common[:, :d] for site, d in zip(exchanges, terms.d, strict=True)]
    Phi = np.concatenate(features, axis=1)
    difference = weights_of(exchanges[0]) - weights_of(exact[0])
    errors = Phi @ difference
    deviation = terms.targets[0].deviation
    assert np.abs(errors).max() < 5e-3 * deviation


def test_a_score_pays_for_three_sites_and_two_have_none(
    session: tuple[Pump, list[SiteExchange]],
) -> None:
    pump, _ = session
    for site in pump.sites.values():
        gains = site.result.judged.verdict.gains
        if len(pump.sites) > 2:
            assert gains["score"].change < -0.1
        else:
            assert "score" not in gains


def test_a_model_s_part_is_that_of_the_exchange(
    session: tuple[Pump, list[SiteExchange]],
) -> None:
    pump, exchanges = session
    everyone = range(len(exchanges))
    weights = weights_of(exchanges[0])
    for site, own in zip(pump.sites.values(), exchanges, strict=True):
        assert isinstance(site.result, AdditiveResult)
        model = site.result.model
        start = own.start
        # The forest predicts own rows out of bag.
        others = np.setdiff1d(np.arange(start.n_common), start.rows.own)
        phi = model.phi(start.rows.X[others])
        part = model.part(phi, everyone)
        features = start.W[others, : own.terms.d[own.site]]
        expected = features @ weights[own.terms.blocks[own.site]]
        assert_allclose(part, expected, atol=1e-9)


def of_two_classes() -> dict[str, PrivateData]:
    data = {}
    for name, rows in rows_of("abc").items():
        positive = (rows.y > 0).astype(float)
        data[name] = replace(rows, y=positive, positive="yes")
    return data


def test_a_target_of_two_classes_has_probabilities() -> None:
    pump = federation(of_two_classes(), plan_of(replace(EXACT, task="classification")))
    for site in pump.sites.values():
        assert min(curve.slope for curve in site.result.probabilities) > 0


def test_a_target_of_two_classes_is_refused_by_a_plan_of_numbers() -> None:
    assert federation(of_two_classes(), plan_of()).outcome is Outcome.REFUSED


def test_a_refusal_has_the_number_of_labelled_individuals() -> None:
    few = federation(rows_of("abc", 40), plan_of())
    assert "120 labelled common individuals, where least_rows is 150" in few.end.reason


def test_two_labelled_rows_of_an_individual_are_refused() -> None:
    data = rows_of("abc")
    positions = data["a"].positions.copy()
    positions[1] = 0
    data["a"] = replace(data["a"], positions=positions)
    assert "two labelled rows" in federation(data, plan_of()).end.reason


def test_labels_in_another_unit_end_no_run_and_their_site_is_told() -> None:
    data = rows_of("abc")
    other_unit = 18.0 * data["c"].y
    data["c"] = replace(data["c"], y=other_unit)
    pump = federation(data, plan_of(Additive()))
    assert pump.outcome is Outcome.CONVERGED
    judged = findings.of_training(pump.sites["c"].result.judged)
    assert "Check their unit" in "\n".join(report.recommended(judged))


def without_labels(rows: PrivateData) -> PrivateData:
    none = np.zeros(0, dtype=np.int64)
    X = rows.X[:0]
    y = rows.y[:0]
    return replace(rows, X=X, y=y, positions=none, row_keys=())


def test_a_site_without_labels_hears_what_the_score_is_worth_elsewhere() -> None:
    data = rows_of("abc", labelled=120)
    data["c"] = without_labels(data["c"])
    for share in (True, False):
        pump = federation(data, plan_of(Additive(share_gain=share)))
        assert pump.outcome is Outcome.CONVERGED
        results = {name: site.result for name, site in pump.sites.items()}
        heard_by_a = set()
        heard_by_c = set()
        if share:
            heard_by_a = {"b"}
            heard_by_c = {"a", "b"}
        assert set(results["a"].gains) == heard_by_a, "those of others"
        assert set(results["c"].gains) == heard_by_c
        for name, change in results["c"].gains.items():
            own = results[name].judged.verdict.gains["score"].change
            assert abs(change - own) <= 0.025 + 1e-9, "rounded to 5 %"
        assert set(results["a"].partners) == {"b", "c"}
        summary = findings.of_training(results["c"].judged, results["c"].gains)
        text = " ".join(report.sentences(summary, "y"))
        assert "This site has no labels, so it cannot test a model" in text
        assert ("score together" in text) == share
        assert ("mostly shows too little): a -" in text) == share
        assert "local model is saved" not in text, "it has none"
        assert findings.of_training(results["a"].judged, results["a"].gains).elsewhere is None


@pytest.mark.usefixtures("short")
def test_sites_without_labels_end_with_scores_and_hear_what_they_are_worth() -> None:
    """All labels are at site a."""
    data = rows_of("abc", labelled=160, unlabelled=40)
    truth = data["b"]
    assert truth.positions is not None
    unlabelled = {name: without_labels(data[name]) for name in "bc"}
    plan = plan_of(Additive(kernel="linear"))  # no forest to grow
    pump = federation(data | unlabelled, plan)
    holder = pump.sites["a"].result.judged.verdict
    assert holder.gains["score"].change < -0.1
    for name in "bc":
        result = pump.sites[name].result
        scores = result.scores
        assert len(scores.places) == 160 + 160 + 40, "of all without a label"
        at = np.searchsorted(scores.places, truth.positions)
        correlation = np.corrcoef(scores.values[at], truth.y)[0, 1]
        assert correlation > 0.6
        summary = replace(findings.of_training(result.judged, result.gains), scored=360)
        first, advice = report.sentences(summary, "y")
        assert first.startswith("scores.csv: joint scores of 360 shared individuals")
        percent = 100 * result.gains["a"]
        change = f"At a the score's error changes by {percent:+.0f} %"
        assert change in first
        assert advice.startswith("recommendation: score together")
        assert "local model" not in advice, "it has none"


@pytest.mark.parametrize("lie", [0.0, 3.0])  # in deviations of the labels
def test_a_member_that_lies_where_no_label_judges_is_told(
    monkeypatch: pytest.MonkeyPatch, lie: float
) -> None:
    """It knows which individuals have a label, and is honest there: the verdict sees nothing."""
    honest = SiteExchange.parts

    def parts(exchange: SiteExchange, *given: Any) -> dict[int, np.ndarray]:
        out = honest(exchange, *given)
        terms = exchange.terms
        for receiver in out if exchange.site == 2 else ():
            judged = len(terms.judged(receiver))
            signs = np.where(np.arange(len(terms.scored)) % 2, 1.0, -1.0)
            size = lie * terms.targets[0].deviation * signs
            words = exchange._channel.number(size, exchange.score_exponent)
            told = out[receiver].copy().reshape(-1)
            told[judged:] += words
            out[receiver] = told
        return out

    monkeypatch.setattr(SiteExchange, "parts", parts)
    pump = federation(rows_of("abc"), plan_of(LINEAR))
    for name in "ab":
        result = pump.sites[name].result
        assert result.judged.verdict.gains["score"].change < 0.0
        told = [text for text in result.findings if "are unlike those" in text]
        assert len(told) == (lie > 0.0)


def computation_of(data: PrivateData, rules: Additive) -> AdditiveComputation:
    return AdditiveComputation(plan_of(rules), rules, "a", data, int, os.urandom)


def begin(computation: AdditiveComputation) -> None:
    """The first attempt, without a store of what was made for the run."""
    computation.begin(tuple("abc"), b"", b"", lambda _key, make: make())


def errors_of(data: PrivateData, **terms: Any) -> tuple[np.ndarray, float]:
    """The noise on a site's labels in its own unit, and its size."""
    computation = computation_of(data, Additive(**terms))
    begin(computation)
    start = computation.exchange.start
    size = np.sqrt(start.error_variance)
    return start.error[:, 0] / size, size


def test_label_noise_of_two_sizes_is_drawn_apart() -> None:
    """Else the labels with one size, less those with another, tell the noise: it is one number
    times two sizes. A kernel or a column changes the local model, and so the size.
    """
    data = rows_of("abc")["a"]
    first_of_X = data.X[:, :1]
    first_of_Z = data.Z[:, :1]
    other_columns = replace(data, X=first_of_X, Z=first_of_Z)
    first, size = errors_of(data)
    for other, its_size in (
        errors_of(data, label_noise=1.0),
        errors_of(data, kernel="linear", label_noise=0.7),
        errors_of(other_columns),
    ):
        assert its_size != size
        correlation = np.corrcoef(first, other)[0, 1]
        assert abs(correlation) < 0.5
    same, its_size = errors_of(data)
    assert its_size == size
    assert_array_equal(same, first)


def test_before_the_first_attempt_there_is_no_news() -> None:
    data = rows_of("abc")["a"]
    computation = computation_of(data, Additive())
    assert computation.news("r") is None, "the keys are exchanged first"
    begin(computation)
    news = computation.news("r")
    assert news is not None
    assert "exchange 1, labelled individuals" in news.work


@pytest.mark.parametrize(
    ("change", "expected"), [(-0.384, -0.4), (0.02, 0.0), (-2.0, -1.0), (9.0, 5.0), (np.nan, None)]
)
def test_a_gain_is_one_byte(change: float, expected: float | None) -> None:
    byte = gain_byte(change, 20)
    assert len(byte) == 1
    assert gain_of(byte) == expected
    assert gain_of(gain_byte(change, 19)) is None, "too few labels to judge"
    assert gain_of(gain_byte(None, 20)) is None, "no gain"


# --- the rules on rows ----------------------------------------------------------------------------


def test_a_set_of_rows_is_opened_as_often_as_the_policy_allows() -> None:
    data = rows_of("abc")
    records = {name: Memory() for name in "abc"}

    def train(rows: dict[str, PrivateData], run: str) -> Pump:
        sites = {
            n: site_with(n, r, policy=allowing(openings=2), memory=records[n])
            for n, r in rows.items()
        }
        return Pump(plan_of(run=run), sites).join().run()

    for run in ("run-1", "run-2"):
        assert train(data, run).outcome is Outcome.CONVERGED
    assert "opened 2 times, and openings = 2" in train(data, "run-3").end.reason
    assert len(records["a"].scores()) == 2 * (120 + 200), (
        "the parts for the verdicts of b and c count as scores, and those without a label"
    )
    more = rows_of("abc", 61)
    shifted = {
        n: replace(r, ids=(*data[n].ids, "new-1", "new-2", "new-3")) for n, r in more.items()
    }
    reason = train(shifted, "run-4").end.reason
    assert "labelled rows differ from those of an earlier training" in reason
    assert "None or at least 180 have to differ" in reason


def test_later_trainings_on_some_of_the_rows_want_new_labels() -> None:
    records = {name: Memory() for name in "abc"}
    for run, first in (("run-1", 0), ("run-2", 90)):
        data = rows_of("abc", first=first)
        sites = {n: site_with(n, r, memory=records[n]) for n, r in data.items()}
        pump = Pump(plan_of(run=run), sites).join().run()
    assert "earlier trainings used 18 features on some of these labelled rows" in pump.end.reason
    assert (
        "wants 360 labelled individuals in all, and there are 270: label 90 more" in pump.end.reason
    )


def test_of_two_runs_at_once_with_one_row_of_difference_the_second_opens_nothing() -> None:
    names = [b"%d" % i for i in range(200)]
    consent = Consent.simulated()
    plans = [plan_of(run="run-1"), plan_of(run="run-2")]

    def answer(plan: Plan, labelled: int, *, opens: bool) -> None:
        row_keys = [b"a"] * labelled + [b""] * (200 - labelled)
        rows = row_set(b"", names, {}, row_keys)
        rows = replace(rows, features=18)
        kind = "announce"
        if opens:
            kind = "sums"
        sums = Disclosure(kind, tuple("abc"), rows=rows, labelled=200, opens=opens)
        consent.permit(plan, "ids", sums, 0.0)

    answer(plans[0], 199, opens=False)
    answer(plans[1], 200, opens=False)
    answer(plans[0], 199, opens=True)
    with pytest.raises(Refused, match="1 labelled rows differ"):
        answer(plans[1], 200, opens=True)


# --- what is done to messages on their way --------------------------------------------------------

Change = Callable[[str, Step], Step | None]


def attacked(
    change: Change, terms: Additive = LINEAR, heard: dict[tuple[str, int], Answer] | None = None
) -> Pump:
    """A run in which a step reaches a site changed; ``heard`` are the answers of (site, step)."""
    kept = heard
    if heard is None:
        kept = {}

    def carried(site: str, message: ToSite) -> ToSite | None:
        if isinstance(message, Step):
            return change(site, message)
        return message

    def hearing(name: str) -> Callable[[ToSite, Any], Any]:
        def keep(_message: ToSite, reply: Any) -> Any:
            if isinstance(reply, Answer):
                return kept.setdefault((name, reply.step), reply)
            return reply

        return keep

    sites = {
        name: altered(site_with(name, rows), hearing(name)) for name, rows in rows_of("abc").items()
    }
    return Pump(plan_of(terms), sites, wire=carried).join().run()


def with_bit(step: Step, sender: str = "") -> Step:
    """A bit of the sum changed, or of what a site sealed."""
    if not sender:
        assert step.summed is not None
        values = step.summed.values.copy()
        values[0] += np.uint64(1)
        return replace(step, summed=Words(values))
    parts = []
    for part in step.parts:
        data = part.data
        if part.sender == sender:
            data = bytes([data[0] ^ 1]) + data[1:]
        parts.append(replace(part, data=data))
    return replace(step, parts=tuple(parts))


def cases() -> dict[str, Change]:
    """The coordinator's attacks on the reference's exchange, and on what this one adds to it."""
    old: dict[int, Step] = {}

    def remembered(site: str, step: Step) -> Step:
        if site == "c":
            old.setdefault(step.step, step)
        return step

    def earlier(step: Step) -> Step:
        """With the words and parts of another attempt with the same rows."""
        if not old:
            attacked(remembered)
        earlier_step = old[step.step]
        return replace(step, summed=earlier_step.summed, parts=earlier_step.parts)

    def at(number: int, change: Callable[[Step], Step], only: str = "abc") -> Change:
        def changed(site: str, step: Step) -> Step:
            if step.step == number and site in only:
                return change(step)
            return step

        return changed

    def other_key(step: Step) -> Step:
        return replace(
            step, roster=(replace(step.roster[0], key=step.roster[1].key), *step.roster[1:])
        )

    return {
        "another key in a's name, to b": at(0, other_key, "b"),
        "a bit of a's summary, for all": at(SUMMARIES, lambda s: with_bit(s, "a")),
        "summaries of an earlier attempt, to c": at(SUMMARIES, earlier, "c"),
        "one bit of B of a, for b": at(MESSAGES, lambda s: with_bit(s, "a"), "b"),
        "messages of an earlier attempt, to c": at(MESSAGES, earlier, "c"),
        "one bit of H of c, for all": at(MESSAGES, lambda s: with_bit(s, "c")),
        "the sum of an earlier attempt, for all": at(SUMS, earlier),
        "a bit of the sum, for a": at(SUMS, with_bit, "a"),
        "a share for a, which b sealed": at(SUMS, lambda s: with_bit(s, "b"), "a"),
        "a share for a, in another's name": at(
            SUMS, lambda s: replace(s, parts=tuple(replace(p, sender="c") for p in s.parts)), "a"
        ),
    }


def payload(answer: Answer) -> bytes:
    """All bytes that an answer carries."""
    pieces = [part.data for part in answer.parts]
    if answer.summed is not None:
        pieces.insert(0, answer.summed.data)
    return b"".join(pieces)


@pytest.mark.parametrize("case", cases())
def test_a_coordinator_that_changes_messages_opens_nothing(case: str) -> None:
    terms = LINEAR  # linear features are all among the first
    if "share" in case:
        terms = EXACT
    pump = attacked(cases()[case], terms)
    if pump.end is not None:
        assert pump.outcome is not Outcome.CONVERGED, case
    for site in pump.sites.values():
        assert not isinstance(site.result, AdditiveResult), case


def test_a_coordinator_reads_no_label_no_feature_and_no_part() -> None:
    """Nothing that it relays has more equal words in two attempts than random bytes have, but the
    plan.
    """
    runs: list[dict[tuple[str, int], Answer]] = [{}, {}]
    for heard in runs:
        attacked(lambda _site, step: step, EXACT, heard)
    assert runs[0].keys() == runs[1].keys()
    payloads = [{key: payload(answer) for key, answer in run.items()} for run in runs]
    filled = [key for key, data in payloads[0].items() if data]
    assert len(filled) > 5
    for key in filled:
        one = np.frombuffer(payloads[0][key], np.uint8)
        two = np.frombuffer(payloads[1][key], np.uint8)
        assert len(one) == len(two), "lengths tell sizes, which are the same"
        equal = np.count_nonzero(one == two)
        expected = len(one) / 256
        assert equal < expected + 6 * np.sqrt(expected) + 8, key


def test_a_site_that_restarts_in_the_middle_costs_an_opening_and_changes_no_features() -> None:
    """All attempts of a run open the same statistics: those of the same features, with fresh
    noise.
    """
    pump = Pump(
        plan_of(Additive()),
        {n: site_with(n, rows) for n, rows in rows_of("abc", private=25).items()},
    )
    pump.join().steps(SUMS)
    before = exchange(pump.sites["b"])
    pump.kill("b").run()
    assert pump.outcome is Outcome.CONVERGED
    after = exchange(pump.sites["b"])
    assert_array_equal(before.start.W, after.start.W)
    assert_array_equal(before.start.told, after.start.told)
    [rows, *_] = pump.sites["a"].consent.memory.row_sets()
    assert rows.openings == 2


def test_no_sum_is_answered_more_than_an_hour_after_the_summary() -> None:
    times = count(0.0, 1801.0)  # of each answer: those before the sums are three
    data = rows_of("abc")
    sites = {name: site_with(name, rows) for name, rows in data.items()}
    sites["a"] = site_with("a", data["a"], clock=lambda: next(times))
    pump = Pump(plan_of(), sites).join().run()
    assert pump.outcome is Outcome.REFUSED
    assert "more than an hour since this site's first answer" in pump.end.reason
