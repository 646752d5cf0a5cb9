"""What a line of the ledger says: of a message that leaves, of the question that it answers, of what has to be
remembered.
"""

from dataclasses import dataclass
from typing import Any, assert_never

from coreg_core.additive.model.terms import Residuals
from coreg_core.protocol.messages import (
    Ask,
    Countersigned,
    Fault,
    Fetched,
    FromSite,
    Head,
    Hello,
    Inquiry,
    Leaving,
    Masked,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Share,
)
from site_agent.ledger import disclosures
from site_agent.machine.memory import Remembered


@dataclass(frozen=True)
class Disclosed:
    """What left, by kind: messages, and numbers that depend on labels or features."""

    messages: int
    numbers: int


def entry_for(message: FromSite, ask: Ask | Inquiry | None, remembered: Remembered | None) -> dict[str, Any]:
    """The line of a message that is about to leave; see `Ledger.record`."""
    entry = _describe(message, ask)
    if isinstance(message, Share | Masked) and isinstance(ask, Inquiry):
        residuals: Residuals = "smoothed" if remembered is None else remembered.residuals
        entry |= {"what": disclosures.words(ask, residuals), "labels": disclosures.labels_in(ask)}
    if isinstance(message, Share | Masked) and remembered is not None and remembered.kept is not None:
        entry["kept"] = remembered.kept.to_json()
        if remembered.fresh:
            entry["groups"] = [list(group) for group in remembered.fresh]
    if isinstance(message, Masked) and remembered is not None:
        entry |= {"participants": list(remembered.participants), "may_change": remembered.may_change}
    return entry


def countersigned(receipt: Countersigned) -> dict[str, Any]:
    """The line of what came back for a signed head: nothing left with it."""
    signed = {"countersigned": receipt.at, "signature": receipt.signature, "certificate": receipt.certificate}
    return {"kind": "Countersigned", "run": receipt.run, "head": head_told(receipt.head), **signed}


def head_told(head: Head) -> dict[str, Any]:
    return {"lines": head.lines, "last": head.last, "at": head.at}


def _describe(message: FromSite, ask: Ask | Inquiry | None) -> dict[str, Any]:
    kind = type(message).__name__
    match message:
        case Hello():
            return {"kind": kind, "protocol": message.protocol, "release": message.release}
        case PlanAccepted():
            told = {
                "bound": message.bound,
                "squared_norm": message.squared_norm,
                "rounding": message.rounding,
                "threads": message.threads,
            }
            instances = {"n_unlabelled": message.n_unlabelled, "ids_digest": message.ids_digest}
            digests = {"data_digest": message.data_digest, "plan": message.plan_digest}
            numbers = 3 if message.bound or message.squared_norm or message.rounding else 0
            return {"kind": kind, "run": message.run, "numbers": numbers, **told, **instances, **digests}
        case PlanRefused():
            return {"kind": kind, "run": message.run, "text": message.reason}
        case Prediction():
            sent = {"numbers": message.values.values.size, "sha256": message.values.digest, "sent": "in clear"}
            return {"kind": kind, **_where(message), **sent, **(_question(ask) if isinstance(ask, Ask) else {})}
        case Share():
            values, scalars = message.values, len(message.scalars)
            numbers = scalars + (0 if values is None else values.values.size)
            sent = {"numbers": numbers, "scalars": scalars, "sha256": None if values is None else values.digest}
            asked = _inquiry(ask) if isinstance(ask, Inquiry) else {}
            return {"kind": kind, **_where(message), **sent, "sent": "in clear", **asked}
        case Masked():
            sent = {"numbers": message.words.values.size, "sha256": message.words.digest, "sent": "masked"}
            asked = _question(ask) if isinstance(ask, Ask) else _inquiry(ask) if isinstance(ask, Inquiry) else {}
            return {"kind": kind, **_where(message), **sent, **asked}
        case Fault():
            return {"kind": kind, **_where(message), "text": message.reason}
        case Fetched():
            signed = {"head": head_told(message.head), "signature": message.signature} if message.signature else {}
            return {"kind": kind, "run": message.run, **signed}
        case Leaving():
            return {"kind": kind, "text": message.reason}
        case _:
            assert_never(message)


def _where(message: Prediction | Share | Masked | Fault) -> dict[str, Any]:
    return {"run": message.run, "question": message.question, "attempt": message.attempt}


def _question(ask: Ask) -> dict[str, Any]:
    columns = [[column.coupling, column.weight] for column in ask.columns]
    return {"part": ask.part, "target": ask.targets.digest, "columns": columns, "is_candidate": ask.is_candidate}


def _inquiry(ask: Inquiry) -> dict[str, Any]:
    target = None if ask.targets is None else ask.targets.digest
    return {"question_kind": ask.kind.name, "part": ask.part, "step": ask.step, "target": target, "asked": ask.digest}
