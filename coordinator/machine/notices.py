"""Every notice of a coordinator: its name, its sentence and its fields."""

from dataclasses import asdict
from enum import StrEnum
from math import inf, isinf
from typing import Any

from coordinator.machine.records import Sites, StepDone, Timing, worst
from coreg_core.outcomes import Notice, Outcome, end_sentence


class NoticeName(StrEnum):
    """The kind of a notice: the event of a log line and of a JSON object."""

    # of a run
    ANSWERS_IN_CLEAR = "answers_in_clear"
    RUN_BEGAN = "run_began"
    JOINED = "joined"
    LEFT = "left"
    PLAN_SENT = "plan_sent"
    PLAN_ACCEPTED = "plan_accepted"
    ALIGNING = "aligning"
    APPROVAL_AWAITED = "approval_awaited"
    APPROVED = "approved"
    SITE_DISMISSED = "site_dismissed"
    GOING_ON_WITHOUT = "going_on_without"
    MEMBERS_ARE = "members_are"
    KEYS_CHANGED = "keys_changed"
    STALLED = "stalled"
    ROUND = "round"
    LEDGER_DOUBTFUL = "ledger_doubtful"
    RUN_ENDED = "run_ended"
    # of the service
    LISTENING = "listening"
    SESSION_OPENED = "session_opened"
    SESSION_ENDED = "session_ended"
    SESSION_REJECTED = "session_rejected"
    SESSION_REPLACED = "session_replaced"
    ACCESS_DENIED = "access_denied"
    CERTIFICATE_WARNING = "certificate_warning"
    SERVER_RENEWED = "server_renewed"
    ENROLLED = "enrolled"
    ENROLMENT_REFUSED = "enrolment_refused"
    ENROLMENT_BUSY = "enrolment_busy"
    ENROLMENT_CLOSED = "enrolment_closed"
    RELOADED = "reloaded"
    NOT_RELOADED = "not_reloaded"
    LIST_READ = "list_read"
    DRAINING = "draining"
    STOPPED = "stopped"
    REPEATED = "repeated"


_WARNINGS = frozenset(
    {
        NoticeName.APPROVAL_AWAITED,
        NoticeName.SITE_DISMISSED,
        NoticeName.GOING_ON_WITHOUT,
        NoticeName.STALLED,
        NoticeName.LEDGER_DOUBTFUL,
        NoticeName.SESSION_REJECTED,
        NoticeName.SESSION_REPLACED,
        NoticeName.ACCESS_DENIED,
        NoticeName.CERTIFICATE_WARNING,
        NoticeName.ENROLMENT_REFUSED,
        NoticeName.ENROLMENT_BUSY,
        NoticeName.ENROLMENT_CLOSED,
        NoticeName.NOT_RELOADED,
    }
)
# Sentences whose words are all fields. The functions below make the others.
SENTENCES = {
    NoticeName.ANSWERS_IN_CLEAR: (
        "answers in the clear: this coordinator receives each site's predictions. Labels follow"
        ' from them for every row with known features. With [privacy] aggregation = "secure" it'
        " receives encrypted sums only."
    ),
    NoticeName.JOINED: "{site} joined ({here} of {of})",
    NoticeName.PLAN_SENT: "plan sent to {sites} ({until})",
    NoticeName.PLAN_ACCEPTED: "{site} is ready: its policy allows the plan",
    NoticeName.ALIGNING: "the sites find the ids that all of them have: {sites}",
    NoticeName.APPROVAL_AWAITED: (
        "{approved} of {of} approved, waiting for approval by {sites} ({until})"
    ),
    NoticeName.APPROVED: "the operator of {site} approved the plan",
    NoticeName.SITE_DISMISSED: "{reason}",
    NoticeName.GOING_ON_WITHOUT: "continuing without {sites}, which did not {what}",
    NoticeName.KEYS_CHANGED: "{site} restarted, which interrupts this attempt",
    NoticeName.LEDGER_DOUBTFUL: "{reason}",
    NoticeName.LISTENING: "listening on {host}:{port}",
    NoticeName.SESSION_ENDED: "{site} disconnected: {reason}",
    NoticeName.SESSION_REJECTED: "{reason}",
    NoticeName.SESSION_REPLACED: (
        "a new session of {site}, from {address}, replaced an open one. If its agent was not"
        " restarted, two agents have its identity: end one, or revoke the site if its key was"
        " stolen"
    ),
    NoticeName.SERVER_RENEWED: "the server's certificate is renewed; new connections have it",
    NoticeName.ENROLLED: "{site} has enrolled",
    NoticeName.ENROLMENT_REFUSED: "rejected: {reason}",
    NoticeName.ENROLMENT_BUSY: (
        "a connection for enrolment from {address} was closed: {of_it} are open from there, and "
        "{of_all} in all. A site whose `coreg-agent join` fails can try again"
    ),
    NoticeName.ENROLMENT_CLOSED: (
        "no site can enrol: {address} cannot be listened on ({reason}). It is tried again. Free the"
        " port, or choose another one for [service] listen"
    ),
    NoticeName.NOT_RELOADED: "configuration not reloaded: {reason}",
    NoticeName.LIST_READ: "authorised-sites is read again",
}


def notice(
    kind: NoticeName, /, run: str = "", site: str = "", text: str | None = None, **fields: Any
) -> Notice:
    """A notice with these fields for programs, and its sentence, or ``text`` in its place.

    The braces of a sentence are fields. ``{until}`` is the timeout of a wait, the field
    ``seconds``.
    """
    if text is None:
        words = {key: ", ".join(x) if isinstance(x, tuple) else x for key, x in fields.items()}
        until = _until(fields.get("seconds", inf))
        text = SENTENCES[kind].format(site=site, until=until, **words)
    if fields.get("seconds") == inf:
        fields["seconds"] = None  # JSON has no infinity
    return Notice(kind, text, "warning" if kind in _WARNINGS else "info", run, site, fields)


def _until(seconds: float) -> str:
    if isinf(seconds):
        return "no timeout"
    return f"timeout {seconds:g} s"


# --- a run ----------------------------------------------------------------------------------------


def run_began(run: str, study: str, attempts: int, awaited: Sites, seconds: float) -> Notice:
    """``attempts``: those of an unfinished run that begins again."""
    what = f"run {run}"
    if study:
        what += f" of study {study}"
    if attempts:
        plural = "attempt" if attempts == 1 else "attempts"
        what += f" begins again after {attempts} {plural}"
    text = f"{what}: waiting for {', '.join(awaited)} to connect ({_until(seconds)})"
    return notice(
        NoticeName.RUN_BEGAN,
        run,
        text=text,
        study=study,
        attempts=attempts,
        awaited=awaited,
        seconds=seconds,
    )


def left(run: str, site: str, reason: str, *, lost: bool) -> Notice:
    """``lost``: its session broke."""
    text = f"{site} {'lost' if lost else 'left'}: {reason}"
    return notice(NoticeName.LEFT, run, site, text, reason=reason, lost=lost)


def members_are(run: str, attempt: int, sites: Sites) -> Notice:
    text = f"{len(sites)} sites: {', '.join(sites)}"
    return notice(NoticeName.MEMBERS_ARE, run, text=text, attempt=attempt, sites=sites)


def stalled(run: str, sites: Sites, what: str, seconds: float) -> Notice:
    text = f"stalled: {what or 'waiting for enough sites'} ({_until(seconds)})"
    return notice(NoticeName.STALLED, run, text=text, sites=sites, seconds=seconds)


def step_answered(run: str, step: StepDone, timing: Timing) -> Notice:
    """The sites' report of a step, with the worst column's figures."""
    report = step.report
    return notice(
        NoticeName.ROUND,
        run,
        text="",
        step=step.number,
        attempt=step.attempt,
        round=report.round,
        answered=step.answered,
        phase=step.phase,
        verified=report.verified,
        residual=worst(report.residual),
        gap=worst(report.gap),
        **asdict(timing),
    )


def run_ended(run: str, outcome: Outcome, reason: str) -> Notice:
    text = end_sentence(outcome, reason)
    return notice(NoticeName.RUN_ENDED, run, text=text, outcome=outcome.name, reason=reason)


# --- the service ----------------------------------------------------------------------------------


def session_opened(site: str, release: str, until: str) -> Notice:
    """``until``: the expiry of its certificate."""
    text = f"{site} is connected"
    if release:
        text += f", with release {release}"
    return notice(NoticeName.SESSION_OPENED, site=site, text=text, release=release, until=until)


def access_denied(name: str, reason: str) -> Notice:
    """The coordinator refused a certificate. Its ``name`` proves no site."""
    text = f"rejected: {name or 'unknown peer'}: {reason}"
    return notice(NoticeName.ACCESS_DENIED, text=text, name=name, reason=reason)


def reloaded(sites: Sites, limit: int, later: str) -> Notice:
    """``later``: the changed keys that take effect at a restart."""
    text = f"configuration reloaded: {len(sites)} sites, max_concurrent_runs = {limit}"
    if later:
        text += f"; the change of {later} needs a restart"
    return notice(NoticeName.RELOADED, text=text, sites=sites, max_concurrent_runs=limit)


def draining(runs: list[str]) -> Notice:
    if not runs:
        return notice(NoticeName.DRAINING, text="draining")
    return notice(NoticeName.DRAINING, text=f"draining: {', '.join(runs)}", runs=runs)
