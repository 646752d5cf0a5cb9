"""The ledger's lines for messages that leave, with their disclosure."""

from dataclasses import dataclass
from typing import Any, assert_never

from coreg_core.protocol.messages import (
    Answer,
    Approval,
    Countersigned,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    LedgerHead,
    Offer,
    PlanRefused,
)
from site_agent.ledger import disclosures
from site_agent.machine.memory import Told


@dataclass(frozen=True)
class Disclosed:
    """Counts of one kind: messages that left, and numbers in them that depend on labels or features."""

    messages: int
    numbers: int


def entry_for(message: FromSite, told: Told | None) -> dict[str, Any]:
    """The line for a message before it leaves; see `Ledger.record`."""
    entry = _describe(message)
    if isinstance(message, Answer) and told is not None and message.words is not None:
        asked = told.asked
        entry |= {
            "numbers": asked.layout.plain + asked.layout.scalars or len(message.words.values),
            "words": len(message.words.values),
            "sha256": message.words.digest,
            "sent": "sealed" if told.sealed else "in clear",
            "question": disclosures.kind_of(asked),
            "what": disclosures.words(asked),
            "labels": disclosures.labels_in(asked),
            "participants": list(told.sites) if told.sealed else [],
            "may_change": told.may_change,
        }
    return entry


def countersigned(receipt: Countersigned) -> dict[str, Any]:
    """The line for a received countersignature: nothing leaves with it."""
    signed = {"countersigned": receipt.at, "signature": receipt.signature, "certificate": receipt.certificate}
    return {"kind": "Countersigned", "run": receipt.run, "head": head_told(receipt.head), **signed}


def head_told(head: LedgerHead) -> dict[str, Any]:
    return {"lines": head.lines, "last": head.last, "at": head.at}


def _describe(message: FromSite) -> dict[str, Any]:
    kind = type(message).__name__
    match message:
        case Hello():
            return {"kind": kind, "protocol": message.protocol, "release": message.release}
        case Offer():
            about = {"attempt": message.attempt, "plan": message.plan_digest, "n_unlabelled": message.n_unlabelled}
            digests = {"ids_digest": message.ids_digest, "data_digest": message.data_digest}
            return {"kind": kind, "run": message.run, **about, **digests}
        case Approval():
            return {"kind": kind, "run": message.run, "given": message.given}
        case PlanRefused():
            return {"kind": kind, "run": message.run, "text": message.reason}
        case Answer():
            report = {key: value for key, value in vars(message.report).items() if value}
            return {"kind": kind, **_where(message), "report": report}
        case Fault():
            return {"kind": kind, **_where(message), "text": message.reason}
        case Fetched():
            signed = {"head": head_told(message.head), "signature": message.signature} if message.signature else {}
            return {"kind": kind, "run": message.run, **signed}
        case Leaving():
            return {"kind": kind, "text": message.reason}
        case _:
            assert_never(message)


def _where(message: Answer | Fault) -> dict[str, Any]:
    return {"run": message.run, "attempt": message.attempt, "step": message.step}
