"""Ids for an alignment: read, normalised by the plan's rule, and the file of the shared ids."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreg_core.errors import BadData
from coreg_core.protocol.plan import Alignment, IdRule, Plan
from site_agent.data.errors import BadTable, Fault, Faults
from site_agent.data.inputs import Inputs
from site_agent.data.tables import read_table
from site_agent.machine.memory import SiteResult

FILE = "aligned.json"
_YEAR, _MONTH, _DAY = r"(19|20)\d\d", "(0?[1-9]|1[0-2])", r"(0?[1-9]|[12]\d|3[01])"
_COMPACT = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
_DATE = re.compile(f"{_YEAR}[-./]{_MONTH}[-./]{_DAY}|{_COMPACT}|{_DAY}[-./]{_MONTH}[-./]{_YEAR}")
_FEW_IDS, _LONG = 10**7, 20


def normalised(text: str, rule: IdRule) -> str:
    """An id by the rule. "exact": NFC and no space around it; "folded": NFKC, case and inner spaces ignored; "numbers": also
    zeros before a digit."""
    if rule == "exact":
        return unicodedata.normalize("NFC", text).strip()
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", folded) if rule == "numbers" else folded


@dataclass(frozen=True)
class SharedIds:
    """The result of an alignment: this site's shared ids, normalised by ``rule``; ``own``: how many ids it had then."""

    rule: IdRule
    ids: tuple[str, ...]
    run: str = ""
    own: int = 0

    @classmethod
    def read(cls, path: Path) -> "SharedIds":
        """`FILE` of a run's folder.

        Raises
        ------
        BadData
            it cannot be read, or is no such file.
        """
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return cls(plain["rule"], tuple(map(str, plain["ids"])), str(plain["run"]), int(plain["own"]))
        except FileNotFoundError:
            known = ", ".join(sorted(each.parts[-3] for each in Path(*path.parts[:-3]).glob(f"*/current/{FILE}")))
            there = f"The alignments here: {known}. " if known else ""
            raise BadData(
                f"{path}: no such file. {there}Correct `shared` (or --shared), or run the alignment first."
            ) from None
        except OSError as error:
            raise BadData(f"{path}: cannot be read ({error.strerror}).") from None
        except (ValueError, KeyError, TypeError):
            raise BadData(
                f"{path}: not the result of an alignment. `shared` takes the name of the study that aligned the ids, or the file "
                "that `coreg-agent align` wrote. A table of shared rows is `unlabelled` (--unlabelled)."
            ) from None

    @classmethod
    def of(cls, plan: Plan, result: SiteResult) -> "SharedIds | None":
        """Of a finished alignment; None if no id is shared."""
        terms = plan.objective
        if result.aligned is None or not isinstance(terms, Alignment):
            return None
        return cls(terms.ids, result.aligned.ids, plan.run, result.aligned.own)

    def text(self) -> str:
        """The file's contents."""
        plain: dict[str, Any] = {"run": self.run, "rule": self.rule, "own": self.own, "ids": self.ids}
        return json.dumps(plain, ensure_ascii=False, indent=0)

    def outdated(self, ids: Iterable[str]) -> str:
        """A note where the site has more ids than at the alignment; "" otherwise."""
        more = len(set(ids)) - self.own
        what = "id" if more == 1 else "ids"
        return "" if more <= 0 else f"{more} {what} more than at alignment {self.run}; align again to share them too"


def guessable(ids: Sequence[str]) -> str:
    """A warning where a member can list all ids that are possible, and test them; "" where there are too many."""
    possible = max((10 if text.isdigit() else 36) ** min(len(text), _LONG) for text in ids)
    if all(_DATE.fullmatch(text) for text in ids):
        what = "dates"
    elif possible <= _FEW_IDS:
        what = f"texts with at most {possible:,} possible values"
    else:
        return ""
    return (
        f"WARNING: these ids are {what}. A member can align a list of all of them, and learns which ones every site has. "
        "Use ids with more possible values, such as pseudonyms."
    )


def read_ids(inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
    """The distinct ids of a data set's tables, normalised and sorted.

    Raises
    ------
    BadTable
        a row without an id, or two ids of one table that are equal after normalisation, with their lines.
    """
    found, known = Faults(), set[str]()
    for source in (inputs.table, inputs.unlabelled):
        if source is None:
            continue
        table = read_table(source, na_values=inputs.na_values).with_id(inputs.id)
        lines: dict[str, list[int]] = {}
        for text, line in zip(table.ids(inputs.id), table.lines.tolist(), strict=True):
            lines.setdefault(normalised(text, rule), []).append(line)
        if "" in lines:
            what = f"no id in {inputs.id!r}."
            found.add(Fault(table.source, what, kind="missing", lines=tuple(lines.pop("")), about=inputs.id))
        for text, where in lines.items():
            if len(where) > 1:
                what = f"the id {text!r} (normalised by the rule {rule!r}) occurs {len(where)} times."
                advice = "Keep one row of each individual."
                found.add(Fault(table.source, what, advice, "duplicate", inputs.id, tuple(where)))
        known |= set(lines)
    found.raise_any()
    if not known:
        raise BadTable(Fault(str(inputs.table), "no id to align.", kind="missing"))
    return tuple(sorted(known, key=str.encode))
