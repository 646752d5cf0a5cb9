r"""The coordinator as a state machine: one event in, a list of actions out. No socket, no clock, no file.

A run's life: ENROLLING (sites join), PLANNING (each accepts the plan or refuses), ROUND (all that are asked answer),
WAITING (somebody is missing and the plan cannot do without), DELIVERING (over; sites fetch their models), DONE. Which
event may lead where is a table, in phases.py. What it must not know: labels, features,
ids, how a message travels, what time it is. Sums are taken in site order, whatever the order of arrival.
"""

from typing import Any, assert_never

import numpy as np

from coordinator.events import (
    Action,
    DeadlinePassed,
    Ended,
    Event,
    Finish,
    Interrupted,
    Membership,
    Persist,
    Received,
    Reject,
    Report,
    Resumption,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
    Snapshot,
    StepTaken,
)
from coordinator.phases import TRANSITIONS, Phase, Timeouts
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Ask,
    Fault,
    Finished,
    Hello,
    Leaving,
    Plan,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Vector,
)
from coreg_core.rounds import make_schedule
from coreg_core.rounds.schedule import FinalTargets, Query, Schedule, Stop, Terms, overall_stop

SNAPSHOT_EVERY = 20  # questions: so many sums at most are replayed when a run is taken up again


class Coordinator:
    """See the module's docstring. Call `start` once, then `handle` for every event, and carry out what they return."""

    def __init__(self, plan: Plan, timeouts: Timeouts, resumption: Resumption | None = None):
        self.plan, self.timeouts = plan, timeouts
        self.phase = Phase.ENROLLING
        self.accepted: dict[str, PlanAccepted] = {}  # what each site agreed to, once, whether it is here or not
        self.participants: tuple[str, ...] = ()  # of the current attempt, in site order
        self._hellos: dict[str, Hello] = {}  # open sessions
        self._ready: set[str] = set()  # open sessions that accepted the plan
        self._invited: set[str] = set()  # sites that were sent the plan before the first round
        self._excluded: dict[str, str] = {}  # sites that cannot take part any more, and why
        self._reference: Hello | None = None  # the unlabelled set that everybody has to share
        self._fetched: set[str] = set()
        self._round, self._attempt, self._token = 0, 0, 0
        self._schedule: Schedule[Any] | None = None
        self._state: Any = None
        self._query: Query | None = None
        self._answers: dict[str, Vector] = {}
        self._outcome: tuple[Stop, str] | None = None
        self._resumed = resumption is not None
        if resumption is not None:
            self._take_up(resumption)

    # --- the two doors --------------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """The first actions."""
        if (stop := self._stop()) is not None:  # killed after the last step: only the models are still to be fetched
            return [Report(f"taking up run {self.plan.run}, which is over"), *self._end(stop, "")]
        awaited = self.participants or self.plan.sites
        verb = f"taking up run {self.plan.run} at question {self._round}" if self._resumed else f"run {self.plan.run}"
        return [Report(f"{verb}: waiting for {', '.join(awaited)}"), self._deadline(self.timeouts.join)]

    def handle(self, event: Event) -> list[Action]:
        """What to do about an event. Every event is welcome in every phase; what comes too late changes nothing."""
        before = self.phase
        match event:
            case SiteJoined(hello):
                actions = self._joined(hello)
            case Received(site, message):
                actions = self._received(site, message)
            case SiteLost(site, reason):
                actions = self._lost(site, reason)
            case DeadlinePassed(token):
                actions = self._deadline_passed() if token == self._token else []
            case Interrupted():
                actions = self._interrupted()
            case _:
                assert_never(event)
        allowed = TRANSITIONS[before][type(event)] | {before}
        assert self.phase in allowed, f"{before} --{event}--> {self.phase} is not in the table"
        return actions

    @property
    def missing(self) -> tuple[str, ...]:
        """Who is awaited now, in site order."""
        match self.phase:
            case Phase.ENROLLING | Phase.PLANNING:
                here = self._hellos if self._enrolling else self._ready
                return tuple(s for s in self._awaited if s not in here)
            case Phase.ROUND | Phase.WAITING:
                return tuple(s for s in self._asked if s not in self._answers)
            case Phase.DELIVERING:
                return tuple(s for s in self.participants if s not in self._fetched)
            case Phase.DONE:
                return ()

    # --- joining --------------------------------------------------------------------------------------------------

    @property
    def _awaited(self) -> list[str]:
        """Whom enrolling and planning wait for: of those that the plan went to, or of all where these are too few."""
        left = [s for s in self.participants or sorted(self.plan.sites) if s not in self._excluded]
        came = [s for s in left if s in self._invited]
        planning = self.phase is Phase.PLANNING and len(came) >= self.plan.min_sites
        return came if planning else left

    @property
    def _enrolling(self) -> bool:
        return self.phase is Phase.ENROLLING and not self._resumed

    def _joined(self, hello: Hello) -> list[Action]:
        if self._enrolling and not self._hellos.keys() - {hello.site}:
            self._reference = None  # nobody else is here: what this site, or one that has gone, said before is void
        if reason := self._objection(hello):
            self._hellos.pop(hello.site, None)
            self._ready.discard(hello.site)
            return [Reject(hello.site, reason), Report(reason)]
        self._hellos[hello.site] = hello
        self._ready.discard(hello.site)
        self._invited.add(hello.site)
        self._reference = self._reference or hello
        joined = Report(f"{hello.site} joined ({len(self._hellos)} of {len(self.plan.sites)})")
        if not self._enrolling:
            return [joined, Send(hello.site, self.plan)]
        return [joined] if self.missing else [joined, *self._begin_planning()]

    def _objection(self, hello: Hello) -> str | None:
        site = hello.site
        if self.phase is Phase.DONE:
            return f"{site}: run {self.plan.run} is over."
        if hello.protocol != PROTOCOL_VERSION:
            return (
                f"{site}: speaks protocol {hello.protocol}, this coordinator {PROTOCOL_VERSION}. "
                "Install the same release of coreg-federation on both sides."
            )
        if site not in self.plan.sites:
            return f"{site}: not in this run's list of sites ({', '.join(self.plan.sites)}). Add it to federation.toml."
        if site in self._excluded:
            return f"{site}: no longer in this run: {self._excluded[site]}"
        if hello.n_unlabelled < 1:
            return f"{site}: shares no unlabelled instance. Give rows with an empty target, or --unlabelled FILE."
        if (known := self._reference) is None:
            return None
        if hello.n_unlabelled != known.n_unlabelled:
            return (
                f"{site}: {hello.n_unlabelled} unlabelled instances, {known.site} has {known.n_unlabelled}. "
                "All sites list the same instances: compare the two id columns."
            )
        if hello.ids_digest != known.ids_digest:
            return (
                f"{site}: {hello.n_unlabelled} unlabelled instances as {known.site}, but their ids differ "
                f"(digest {hello.ids_digest[:12]} against {known.ids_digest[:12]}). Compare the two id columns."
            )
        return None

    def _begin_planning(self) -> list[Action]:
        self.phase, self._invited = Phase.PLANNING, set(self._hellos)
        sends: list[Action] = [Send(site, self.plan) for site in sorted(self._hellos)]
        return [Report("plan sent"), self._deadline(self.timeouts.plan), *sends]

    # --- messages -------------------------------------------------------------------------------------------------

    def _received(self, site: str, message: Any) -> list[Action]:
        if site not in self._hellos:
            return []  # a session that was rejected or replaced still speaks
        match message:
            case PlanAccepted():
                return self._plan_accepted(site, message)
            case PlanRefused(run, reason):
                return self._exclude(site, Stop.REFUSED, f"{site} refused the plan: {reason}") if self._is(run) else []
            case Prediction():
                return self._answered(site, message)
            case Fault(run, round_, attempt, reason):
                # A session that has not accepted the plan yet may get a question that was meant for the one before it.
                current = self._is(run) and (round_, attempt) == (self._round, self._attempt) and site in self._ready
                return self._exclude(site, Stop.SITE_FAULT, f"{site}: {reason}") if current else []
            case Leaving(reason):
                return self._left(site, reason)
            case Hello():
                return self._exclude(site, Stop.SITE_FAULT, f"{site} said hello twice in one session.")
            case _:
                raise AssertionError(f"{site} sent {message!r}, which no transport lets through")

    def _is(self, run: str) -> bool:
        return run == self.plan.run

    def _plan_accepted(self, site: str, accepted: PlanAccepted) -> list[Action]:
        if not self._is(accepted.run) or site in self._ready:
            return []
        if accepted.plan_digest != self.plan.digest:
            return self._exclude(site, Stop.SITE_FAULT, f"{site} accepted another plan than the one it was sent.")
        if not (0 <= accepted.bound < np.inf and 0 <= accepted.scale < np.inf):
            return self._exclude(site, Stop.SITE_FAULT, f"{site}: bound and scale are finite numbers of at least 0.")
        if (earlier := self.accepted.get(site)) is not None and earlier != accepted:
            what = "thread count" if earlier.threads != accepted.threads else "data (or how they are preprocessed)"
            reason = (
                f"{site}: came back with another {what} than it joined with, so its answers no longer fit this run. "
                "Start its agent with what it had, or start a new run (--new)."
            )
            del self._hellos[site]
            return [Reject(site, reason), Report(reason)]
        self.accepted[site] = accepted
        self._ready.add(site)
        ready = Report(f"{site} accepted the plan")
        match self.phase:
            case Phase.ENROLLING | Phase.PLANNING:
                return [ready] if self.missing else [ready, *self._begin_rounds()]
            case Phase.ROUND | Phase.WAITING:
                again = site in self._asked and site not in self._answers
                return [ready, Send(site, self._ask())] if again else [ready, *self._go_on()]
            case Phase.DELIVERING:
                return [ready, Send(site, self._finished(site))]
            case Phase.DONE:
                return []

    def _left(self, site: str, reason: str) -> list[Action]:
        self._hellos.pop(site, None)
        self._ready.discard(site)
        if self.phase is not Phase.DELIVERING:
            return [Report(f"{site} left: {reason}")]
        self._fetched.add(site)
        return [] if self.missing else self._done()

    def _lost(self, site: str, reason: str) -> list[Action]:
        if self._hellos.pop(site, None) is None:
            return []
        self._ready.discard(site)
        return [Report(f"{site} lost: {reason}")]

    def _exclude(self, site: str, stop: Stop, reason: str) -> list[Action]:
        """A site that cannot take part any more: go on without it where the plan allows, and end otherwise."""
        if self.phase in (Phase.DELIVERING, Phase.DONE):
            self._fetched.add(site)
            over = self.phase is Phase.DELIVERING and not self.missing
            return [Report(reason), *(self._done() if over else [])]
        self._excluded[site] = reason
        self._hellos.pop(site, None)
        self._ready.discard(site)
        told: list[Action] = [Reject(site, reason), Report(reason)]
        if self.participants and site not in self.participants:
            return told  # it came late or came back, and nobody counts on it
        left = [s for s in (self.participants or self.plan.sites) if s not in self._excluded]
        if len(left) < self.plan.min_sites or (self.participants and self.plan.on_lost == "wait"):
            return [*told, *self._end(stop, reason)]
        if self.phase in (Phase.ROUND, Phase.WAITING):
            return [*told, *self._regroup(left)]
        return told if self.missing else [*told, *self._begin_rounds()]

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _begin_rounds(self) -> list[Action]:
        if self._resumed and not self._excluded.keys() & set(self.participants):
            self._resumed = False
            return self._next_question()
        return self._regroup(sorted(self._ready))

    def _regroup(self, participants: list[str]) -> list[Action]:
        """Start the schedule, or start it again from z, with these sites; who is not here now has the round's time."""
        assert len(participants) >= self.plan.min_sites, f"{participants} are fewer than {self.plan.min_sites}"
        warm: FinalTargets | None = None
        rounds = 0
        if self._schedule is not None:
            warm, rounds = self._schedule.models(self._state), self._state.round
            self._attempt += 1
        self._resumed = False
        self.participants = tuple(sorted(participants))
        assert self._reference is not None
        self._schedule = make_schedule(self.plan.schedule, self._terms())
        self._state = self._schedule.start(self._reference.n_unlabelled, warm, rounds)
        membership = Membership(
            self._attempt,
            self._round,
            self._reference.n_unlabelled,
            self._reference.ids_digest,
            {site: self.accepted[site] for site in self.participants},
            self._state.to_arrays(),
        )
        return [
            Persist(membership),
            Report(f"{len(self.participants)} sites: {', '.join(self.participants)}"),
            *self._next_question(),
        ]

    def _terms(self) -> Terms:
        plan, accepted = self.plan, [self.accepted[site] for site in self.participants]
        return Terms(
            coupling=plan.coupling,
            bounds=tuple(a.bound for a in accepted),
            scale=sum(a.scale for a in accepted),
            tolerance=plan.tolerance,
            prediction_tolerance=plan.prediction_tolerance,
            max_rounds=plan.max_rounds,
        )

    @property
    def _asked(self) -> tuple[str, ...]:
        if self._query is None:
            return ()
        return self.participants if self._query.site is None else (self.participants[self._query.site],)

    def _ask(self) -> Ask:
        assert self._query is not None
        q = self._query
        return Ask(self.plan.run, self._round, self._attempt, q.part, tuple(q.weights.tolist()), Vector(q.targets))

    def _next_question(self) -> list[Action]:
        assert self._schedule is not None
        self.phase = Phase.ROUND
        self._answers = {}
        self._query = self._schedule.query(self._state)
        ask = self._ask()
        sends: list[Action] = [Send(site, ask) for site in self._asked if site in self._ready]
        return [self._deadline(self.timeouts.round), *sends]

    def _answered(self, site: str, answer: Prediction) -> list[Action]:
        if (answer.run, answer.round, answer.attempt) != (self.plan.run, self._round, self._attempt):
            return []  # late, or repeated after a reconnection: its round is over
        if self.phase not in (Phase.ROUND, Phase.WAITING) or site not in self._asked or site in self._answers:
            return []
        if site not in self._ready:
            return []  # not yet in the plan in this session; it will be asked again
        assert self._query is not None
        if answer.values.shape != self._query.targets.shape:
            reason = (
                f"{site}: {answer.values.shape} predictions in round {self._round}, "
                f"expected {self._query.targets.shape}. Check that its unlabelled file lists the shared instances."
            )
            return self._exclude(site, Stop.SITE_FAULT, reason)
        if not answer.values.finite:
            reason = f"{site}: NaN or infinity among its predictions in round {self._round}. Check its features."
            return self._exclude(site, Stop.SITE_FAULT, reason)
        self._answers[site] = answer.values
        return self._go_on() if self.missing else self._step()

    def _go_on(self) -> list[Action]:
        """A run that stalled goes on once enough have answered, where the plan can do without the others."""
        here = [s for s in sorted(self._ready) if s not in self.missing]
        stalled = self.phase is Phase.WAITING and self.plan.on_lost == "continue"
        return self._regroup(here) if stalled and len(here) >= self.plan.min_sites else []

    def _step(self) -> list[Action]:
        assert self._schedule is not None
        asked = self._asked
        total = self._answers[asked[0]].values
        for site in asked[1:]:  # in site order, so that arrival order cannot change a bit
            total = total + self._answers[site].values
        self._state = self._schedule.step(self._state, total)
        taken = StepTaken(
            self._round, self._attempt, Vector(total), self._schedule.progress(self._state), len(self._answers)
        )
        self._round += 1
        actions: list[Action] = [Persist(taken), Report("", taken)]
        if (stop := self._stop()) is not None:
            return [*actions, *self._end(stop, "")]
        if self._round % SNAPSHOT_EVERY == 0:
            actions.append(Persist(Snapshot(self._round, self._state.to_arrays())))
        returned = [s for s in sorted(self._ready) if s not in self.participants]
        if returned:  # taken back at a round's end, never in its middle
            return [*actions, *self._regroup([*self.participants, *returned])]
        return [*actions, *self._next_question()]

    def _stop(self) -> Stop | None:
        """Why the schedule has ended; None while it runs, and before it began."""
        if self._schedule is None or not self._schedule.finished(self._state):
            return None
        progress = self._schedule.progress(self._state)
        return (overall_stop(progress.stops) if progress is not None else None) or Stop.MAX_ROUNDS

    # --- time -----------------------------------------------------------------------------------------------------

    def _deadline(self, seconds: float) -> SetDeadline:
        self._token += 1
        return SetDeadline(self._token, seconds)

    def _deadline_passed(self) -> list[Action]:
        names = ", ".join(self.missing)
        match self.phase:
            case Phase.ENROLLING if not self._resumed:
                if len(self._hellos) >= self.plan.min_sites:
                    return [Report(f"going on without {names}, who did not join in time"), *self._begin_planning()]
                return self._end(Stop.TOO_FEW_SITES, f"{names} did not join within {self.timeouts.join:g} s")
            case Phase.ENROLLING | Phase.PLANNING:
                if len(self._ready) >= self.plan.min_sites and (not self._resumed or self.plan.on_lost == "continue"):
                    return [Report(f"going on without {names}, who did not answer the plan"), *self._without_missing()]
                return self._end(Stop.TOO_FEW_SITES, f"{names} did not accept the plan in time")
            case Phase.ROUND:
                here = [s for s in self.participants if s in self._ready and s not in self.missing]
                if self.plan.on_lost == "continue" and len(here) >= self.plan.min_sites:
                    return [Report(f"going on without {names}, who did not answer in time"), *self._regroup(here)]
                return self._wait()
            case Phase.WAITING:
                return self._end(Stop.STALLED, f"{names} did not come back within {self.timeouts.stall:g} s")
            case Phase.DELIVERING:
                return [Report(f"{names} did not fetch the final models"), *self._done()]
            case Phase.DONE:
                return []

    def _without_missing(self) -> list[Action]:
        return self._regroup(sorted(self._ready))

    def _wait(self) -> list[Action]:
        self.phase = Phase.WAITING
        names = ", ".join(self.missing) or "enough sites"
        return [Report(f"stalled: waiting for {names}"), self._deadline(self.timeouts.stall)]

    # --- the end --------------------------------------------------------------------------------------------------

    def _interrupted(self) -> list[Action]:
        if self.phase is Phase.DONE:
            return []
        if self.phase is Phase.DELIVERING:
            return self._done()
        # Not persisted as an end: the same command takes the run up where it was.
        self._outcome = (Stop.INTERRUPTED, "")
        self.phase = Phase.DONE
        return [Finish(Stop.INTERRUPTED, "")]  # sessions close; agents come back by themselves

    def _end(self, stop: Stop, reason: str) -> list[Action]:
        self._outcome = (stop, reason)
        self.phase = Phase.DELIVERING
        self._query = None
        if not self.participants:
            self.participants = tuple(sorted(self._hellos))
        sends: list[Action] = [Send(site, self._finished(site)) for site in self.participants if site in self._hellos]
        self._fetched |= set(self._excluded)
        # Nobody who is not here will come for a model that did not converge, unless the coordinator was away itself.
        if stop is not Stop.CONVERGED and not (self._resumed and self._stop() is stop):
            self._fetched |= {s for s in self.participants if s not in self._hellos}
        if not self.missing:
            return [*sends, *self._done()]
        return [*sends, self._deadline(self.timeouts.round)]

    def _finished(self, site: str) -> Finished:
        assert self._outcome is not None
        stop, reason = self._outcome
        models = self._schedule.models(self._state) if self._schedule is not None else None
        if models is None or site not in self.participants:
            return Finished(self.plan.run, stop, reason)
        targets = Vector(models.of(self.participants.index(site)))
        return Finished(self.plan.run, stop, reason, tuple(models.weights.tolist()), targets)

    def _done(self) -> list[Action]:
        # Written last: a coordinator that is killed while sites fetch their models goes on delivering.
        assert self._outcome is not None
        self.phase = Phase.DONE
        # Sites that were late are no fault of what was computed: with its rounds on record, such a run is not written
        # down as ended, and the same command takes it up. Without any there is nothing to take up.
        if self._outcome[0] in (Stop.STALLED, Stop.TOO_FEW_SITES) and self._schedule is not None:
            return [Finish(*self._outcome)]
        return [Persist(Ended(*self._outcome)), Finish(*self._outcome)]

    # --- taking up a run ------------------------------------------------------------------------------------------

    def _take_up(self, left: Resumption) -> None:
        membership = left.membership
        self.accepted = dict(membership.participants)
        self.participants = tuple(sorted(membership.participants))
        self._reference = Hello(self.participants[0], PROTOCOL_VERSION, membership.n_unlabelled, membership.ids_digest)
        self._attempt, self._round = membership.attempt, left.round
        self._schedule = make_schedule(self.plan.schedule, self._terms())
        self._state = self._schedule.restore(left.state)
        for total in left.totals:
            self._state = self._schedule.step(self._state, total.values)
            self._round += 1
