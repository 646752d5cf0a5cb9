"""Every notice of a coordinator: its sentence and its fields."""

from dataclasses import asdict
from math import isinf
from typing import Any

from coordinator.machine.records import Sites, StepDone, Timing
from coreg_core.outcomes import Level, Notice, Outcome, end_sentence

# --- a run ----------------------------------------------------------------------------------------


def answers_in_clear(run: str) -> Notice:
    text = (
        "answers in the clear: this coordinator receives each site's predictions. Labels follow"
        ' from them for every row with known features. With [privacy] aggregation = "secure" it'
        " receives encrypted sums only."
    )
    return Notice("answers_in_clear", text, run=run)


def run_began(run: str, study: str, attempts: int, awaited: Sites, seconds: float) -> Notice:
    """``attempts``: those of an unfinished run that begins again."""
    what = f"run {run}"
    if study:
        what += f" of study {study}"
    if attempts:
        plural = "attempt" if attempts == 1 else "attempts"
        what += f" begins again after {attempts} {plural}"
    text = f"{what}: waiting for {', '.join(awaited)} to connect"
    return _limited(
        "run_began", text, run, seconds, study=study, attempts=attempts, awaited=awaited
    )


def joined(run: str, site: str, here: int, of: int) -> Notice:
    return Notice(
        "joined", f"{site} joined ({here} of {of})", "info", run, site, {"here": here, "of": of}
    )


def left(run: str, site: str, reason: str, *, lost: bool) -> Notice:
    """``lost``: its session broke."""
    text = f"{site} {'lost' if lost else 'left'}: {reason}"
    return Notice("left", text, "info", run, site, {"reason": reason, "lost": lost})


def plan_sent(run: str, sites: Sites, seconds: float) -> Notice:
    return _limited("plan_sent", f"plan sent to {', '.join(sites)}", run, seconds, sites=sites)


def plan_accepted(run: str, site: str) -> Notice:
    return Notice(
        "plan_accepted", f"{site} is ready: its policy allows the plan", "info", run, site
    )


def aligning(run: str, sites: Sites) -> Notice:
    text = f"the sites find the ids that all of them have: {', '.join(sites)}"
    return Notice("aligning", text, "info", run, fields={"sites": sites})


def approval_awaited(run: str, sites: Sites, ready: int, of: int, seconds: float) -> Notice:
    text = f"{ready} of {of} approved, waiting for approval by {', '.join(sites)}"
    return _limited(
        "approval_awaited", text, run, seconds, "warning", sites=sites, approved=ready, of=of
    )


def approved(run: str, site: str) -> Notice:
    return Notice("approved", f"the operator of {site} approved the plan", "info", run, site)


def site_dismissed(run: str, site: str, reason: str, *, excluded: bool) -> Notice:
    """``excluded``: the run continues without the site permanently, and not until it reconnects
    with the fault corrected.
    """
    return Notice(
        "site_dismissed", reason, "warning", run, site, {"reason": reason, "excluded": excluded}
    )


def going_on_without(run: str, sites: Sites, what: str) -> Notice:
    text = f"continuing without {', '.join(sites)}, which did not {what}"
    return Notice("going_on_without", text, "warning", run, fields={"sites": sites, "what": what})


def members_are(run: str, attempt: int, sites: Sites) -> Notice:
    text = f"{len(sites)} sites: {', '.join(sites)}"
    return Notice("members_are", text, run=run, fields={"attempt": attempt, "sites": sites})


def keys_changed(run: str, attempt: int, site: str) -> Notice:
    """``attempt``: the next one."""
    return Notice(
        "keys_changed",
        f"{site} restarted, which interrupts this attempt",
        "info",
        run,
        site,
        {"attempt": attempt},
    )


def stalled(run: str, sites: Sites, what: str, seconds: float) -> Notice:
    text = f"stalled: {what or 'waiting for enough sites'}"
    return _limited("stalled", text, run, seconds, "warning", sites=sites)


def step_answered(run: str, step: StepDone, timing: Timing) -> Notice:
    """The sites' report of a step, with the worst column's figures."""
    report = step.report
    worst = {
        "residual": max(report.residual, default=-1.0),
        "gap": max(report.gap, default=-1.0),
    }
    fields = {
        "step": step.number,
        "attempt": step.attempt,
        "round": report.round,
        "answered": step.answered,
        "phase": step.phase,
        "verified": report.verified,
        **{name: value if value >= 0.0 else None for name, value in worst.items()},
        **asdict(timing),
    }
    return Notice("round", run=run, fields=fields)


def ledger_doubtful(run: str, site: str, reason: str) -> Notice:
    """The head of a site's ledger was not countersigned, or the ledger is shorter than before.

    The site has its result.
    """
    return Notice("ledger_doubtful", reason, "warning", run, site, {"reason": reason})


def run_ended(run: str, outcome: Outcome, reason: str) -> Notice:
    return Notice(
        "run_ended",
        end_sentence(outcome, reason),
        run=run,
        fields={"outcome": outcome.name, "reason": reason},
    )


# --- the service ----------------------------------------------------------------------------------


def listening(host: str, port: int, release: str) -> Notice:
    fields = {"host": host, "port": port, "release": release}
    return Notice("listening", f"listening on {host}:{port}", fields=fields)


def session_opened(site: str, release: str, until: str) -> Notice:
    """``until``: the expiry of its certificate."""
    text = f"{site} is connected"
    if release:
        text += f", with release {release}"
    return Notice("session_opened", text, site=site, fields={"release": release, "until": until})


def session_ended(site: str, reason: str) -> Notice:
    return Notice(
        "session_ended", f"{site} disconnected: {reason}", site=site, fields={"reason": reason}
    )


def session_rejected(site: str, reason: str) -> Notice:
    return Notice("session_rejected", reason, "warning", site=site, fields={"reason": reason})


def access_denied(name: str, reason: str) -> Notice:
    """The coordinator refused a certificate. Its ``name`` proves no site."""
    text = f"rejected: {name or 'unknown peer'}: {reason}"
    return Notice("access_denied", text, "warning", fields={"name": name, "reason": reason})


def certificate_warning(reason: str) -> Notice:
    return Notice("certificate_warning", reason, "warning")


def server_renewed() -> Notice:
    return Notice("server_renewed", "the server's certificate is renewed; new connections have it")


def enrolled(site: str) -> Notice:
    return Notice("enrolled", f"{site} has enrolled", site=site)


def enrolment_refused(name: str, reason: str) -> Notice:
    """The coordinator refused a request for a certificate. Its ``name`` proves no site."""
    return Notice(
        "enrolment_refused",
        f"rejected: {reason}",
        "warning",
        fields={"name": name, "reason": reason},
    )


def enrolment_busy(address: str, of_it: int, of_all: int) -> Notice:
    text = (
        f"a connection for enrolment from {address} was closed: {of_it} are open from there, and "
        f"{of_all} in all. A site whose `coreg-agent join` fails can try again"
    )
    fields = {"address": address, "of_it": of_it, "of_all": of_all}
    return Notice("enrolment_busy", text, "warning", fields=fields)


def enrolment_closed(address: str, reason: str) -> Notice:
    text = (
        f"no site can enrol: {address} cannot be listened on ({reason}). Choose another port for"
        " [service] listen"
    )
    return Notice(
        "enrolment_closed", text, "warning", fields={"address": address, "reason": reason}
    )


def reloaded(sites: Sites, limit: int, later: Sites) -> Notice:
    """``later``: the changed keys that take effect at a restart."""
    text = f"configuration reloaded: {len(sites)} sites, max_concurrent_runs = {limit}"
    if later:
        text += f"; the change of {', '.join(later)} needs a restart"
    return Notice("reloaded", text, fields={"sites": sites, "max_concurrent_runs": limit})


def not_reloaded(reason: str) -> Notice:
    return Notice(
        "not_reloaded",
        f"configuration not reloaded: {reason}",
        "warning",
        fields={"reason": reason},
    )


def list_read() -> Notice:
    return Notice("list_read", "authorised-sites is read again")


def draining(runs: Sites) -> Notice:
    if not runs:
        return Notice("draining", "draining", fields={})
    return Notice("draining", f"draining: {', '.join(runs)}", fields={"runs": runs})


def stopped() -> Notice:
    return Notice("stopped")


def _limited(
    name: str, text: str, run: str, seconds: float, level: Level = "info", **fields: Any
) -> Notice:
    """A notice of a wait, with its timeout."""
    limit = None if isinf(seconds) else seconds
    until = "no timeout" if limit is None else f"timeout {limit:g} s"
    return Notice(name, f"{text} ({until})", level, run, fields={**fields, "seconds": limit})
