"""Notices, disclosures and answer times of the sites: two small tables of the run store, and the recorder that fills them.

The recorder counts every message of a known run and its words, even if the run ignores the message. A killed coordinator can
lose the last few seconds. The sites' ledgers are complete, since a site writes to its ledger before it sends.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coordinator.machine.events import Event, Received, SiteJoined
from coordinator.machine.federation import Federation
from coordinator.machine.notices import MembersAre, Notice, RunEnded, StepAnswered, from_fields, to_fields
from coordinator.store.schema import Tables
from coreg_core.protocol.messages import Answer, FromSite

MAX_NOTICES = 5000  # older ones are deleted
RECENT = 20  # a notice equal to one of the latest is counted and not repeated
MAX_TIMES = 60  # answer times of a site in a run


@dataclass(frozen=True)
class NoticeRow:
    """A notice, the time of its last occurrence (``at``), and the number of occurrences."""

    at: str
    notice: Notice
    times: int


@dataclass(frozen=True)
class Disclosed:
    """The messages of one kind from a site, and their words that depend on its labels or features.

    ``seconds`` are its latest answer times, from sending the step to receiving the whole answer. Over all runs, they are those
    of its latest run.
    """

    site: str
    kind: str
    messages: int
    numbers: int
    seconds: tuple[float, ...] = ()


def numbers_in(message: FromSite) -> int:
    """The number of words of a message that depend on labels or features."""
    return len(message.words.values) if isinstance(message, Answer) and message.words is not None else 0


Key = tuple[str, str, str]  # run, site, kind


class History(Tables):
    """The tables."""

    def write(
        self,
        notices: list[tuple[str, Notice]],
        messages: Counter[Key],
        numbers: Counter[Key],
        seconds: Mapping[Key, list[float]] | None = None,
    ) -> None:
        """Add notices with their times; messages, numbers and answer times by (run, site, kind)."""
        with self.transaction(durable=False):
            for at, notice in notices:
                row = (getattr(notice, "run", ""), type(notice).__name__, json.dumps(to_fields(notice)))
                again = self._db.execute(
                    "update notices set times = times + 1, at = ? where run = ? and kind = ? and fields = ? and number in "
                    "(select number from notices order by number desc limit ?)",
                    (at, *row, RECENT),
                )
                if not again.rowcount:
                    self._db.execute(
                        "insert into notices (at, run, kind, fields, times) values (?, ?, ?, ?, 1)", (at, *row)
                    )
            self._db.execute(
                "delete from notices where number <= (select max(number) from notices) - ?", (MAX_NOTICES,)
            )
            for key, count in messages.items():
                found = self._db.execute(
                    "insert into disclosed (run, site, kind, messages, numbers) values (?, ?, ?, ?, ?) "
                    "on conflict (run, site, kind) do update set "
                    "messages = messages + excluded.messages, numbers = numbers + excluded.numbers returning seconds",
                    (*key, count, numbers[key]),
                ).fetchall()
                if seconds and key in seconds:
                    times = [*json.loads(found[0]["seconds"]), *seconds[key]][-MAX_TIMES:]
                    self._db.execute(
                        "update disclosed set seconds = ? where (run, site, kind) = (?, ?, ?)",
                        (json.dumps(times), *key),
                    )

    def notices(self, run: str | None = None, limit: int = 50) -> list[NoticeRow]:
        """The latest notices of one run or of all runs, newest first."""
        with self.reading():
            rows = self._db.execute(
                "select at, kind, fields, times from notices where ?1 is null or run = ?1 "
                "order by at desc, number desc limit ?2",
                (run, limit),
            ).fetchall()
            found = [(r["at"], from_fields(r["kind"], json.loads(r["fields"])), r["times"]) for r in rows]
            return [NoticeRow(at, notice, times) for at, notice, times in found if notice is not None]

    def disclosed(self, run: str | None = None) -> list[Disclosed]:
        """The messages of each site by kind, in one run or in all runs, in site order."""
        with self.reading():
            rows = self._db.execute(
                # With max(), SQLite takes the other columns of that row: `seconds` are those of the latest run.
                "select site, kind, sum(messages) as messages, sum(numbers) as numbers, seconds, max(rowid) from disclosed "
                "where ?1 is null or run = ?1 group by site, kind order by site, kind",
                (run,),
            ).fetchall()
            return [
                Disclosed(r["site"], r["kind"], r["messages"], r["numbers"], tuple(json.loads(r["seconds"])))
                for r in rows
            ]


class HistoryRecorder:
    """Collects notices and events on the event loop; `flush` writes them in a thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notices: list[tuple[str, Notice]] = []
        self._messages: Counter[Key] = Counter()
        self._numbers: Counter[Key] = Counter()
        self._seconds: dict[Key, list[float]] = {}
        self._asked: dict[str, float] = {}

    def add(self, notice: Notice, at: str) -> None:
        """Record a notice, except answered steps, which are in the table of rounds."""
        match notice:
            case StepAnswered(run=run) | MembersAre(run=run):  # the next step is sent at once
                self._asked[run] = self._clock()
            case RunEnded(run=run):
                self._asked.pop(run, None)
            case _:
                pass
        if not isinstance(notice, StepAnswered):
            with self._lock:
                self._notices.append((at, notice))

    def heard(self, federation: Federation, event: Event) -> bool:
        """Count a message if it belongs to a run of its site; True if there is something to write."""
        match event:
            case SiteJoined(hello=message):
                site, run = message.site, ""
            case Received(site=site, message=message):
                run = getattr(message, "run", "")
                known = federation.runs.get(run)
                if run and (known is None or site not in known.plan.sites):
                    return False  # a site can send any name
            case _:
                return False
        key = (run, site, type(message).__name__)
        with self._lock:
            self._messages[key] += 1
            self._numbers[key] += numbers_in(message)
            if run in self._asked and isinstance(message, Answer) and _is_first(federation, site, message):
                self._seconds.setdefault(key, []).append(round(self._clock() - self._asked[run], 4))
        return True

    def flush(self, history: History) -> None:
        """Write the collected notices and counts."""
        with self._lock:
            taken = self._notices, self._messages, self._numbers, self._seconds
            self._notices, self._messages, self._numbers, self._seconds = [], Counter(), Counter(), {}
        if taken[0] or taken[1]:
            history.write(*taken)


def _is_first(federation: Federation, site: str, answer: Answer) -> bool:
    """Whether it is the site's first answer to the open step."""
    live = federation.runs[answer.run].live
    step = live.steps.get(site)
    return step is not None and (step.attempt, step.step) == (answer.attempt, answer.step) and site not in live.answers
