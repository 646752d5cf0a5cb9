"""What happened and what each site disclosed, for whoever looks later: two small tables of the run store, and who fills
them.

Counted is every message that arrived, used or not, with its numbers as the sites' own ledgers count them. What a killed
coordinator heard in its last moment may be missing here; the sites' ledgers, written before anything leaves, miss
nothing.
"""

import threading
from collections import Counter
from dataclasses import dataclass

from coordinator.driver import Lap, utc_now
from coordinator.machine import notices as n
from coordinator.machine.events import Event, Received, SiteJoined
from coordinator.machine.wording import is_grave, worded
from coordinator.store.schema import Tables, transaction
from coreg_core.protocol.messages import FromSite, Masked, PlanAccepted, Prediction, Share

KEPT = 5000  # notices; the oldest go
ALIKE = 20  # so many of the latest are looked through for the same words, which are counted and not repeated


@dataclass(frozen=True)
class Told:
    """A notice as it was worded; ``at`` is when it was told last, of so many times."""

    run: str
    at: str
    grave: bool
    text: str
    times: int


@dataclass(frozen=True)
class Disclosed:
    """What a site sent of one kind: messages, and numbers that depend on its labels or features."""

    site: str
    kind: str
    messages: int
    numbers: int


def numbers_in(message: FromSite) -> int:
    """How many numbers that depend on labels or features a message holds, as a site's ledger counts them."""
    match message:
        case Prediction(values=values):
            return int(values.values.size)
        case Share(scalars=scalars, values=shared):
            return len(scalars) + (0 if shared is None else int(shared.values.size))
        case Masked(words=words):
            return int(words.values.size)
        case PlanAccepted(bound=bound, squared_norm=squared, rounding=rounding):
            return 3 if bound or squared or rounding else 0
        case _:
            return 0


class Chronicle(Tables):
    """The tables."""

    def write(
        self, told: list[Told], disclosed: Counter[tuple[str, str, str]], numbers: Counter[tuple[str, str, str]]
    ) -> None:
        """Add what was told, and messages and numbers by (run, site, kind)."""
        with transaction(self._db, self.path, marked=False):
            for line in told:
                again = self._db.execute(
                    "update notices set times = times + 1, at = ? where text = ? and run = ? and number in "
                    "(select number from notices order by number desc limit ?)",
                    (line.at, line.text, line.run, ALIKE),
                )
                if not again.rowcount:
                    self._db.execute(
                        "insert into notices (run, at, grave, text, times) values (?, ?, ?, ?, 1)",
                        (line.run, line.at, int(line.grave), line.text),
                    )
            self._db.execute("delete from notices where number <= (select max(number) from notices) - ?", (KEPT,))
            for key, messages in disclosed.items():
                self._db.execute(
                    "insert into disclosed values (?, ?, ?, ?, ?) on conflict (run, site, kind) do update set "
                    "messages = messages + excluded.messages, numbers = numbers + excluded.numbers",
                    (*key, messages, numbers[key]),
                )

    def told(self, run: str | None = None, most: int = 50) -> list[Told]:
        """The latest notices, of one run or of all, the last first."""
        with self._reading():
            rows = self._db.execute(
                "select run, at, grave, text, times from notices where ?1 is null or run = ?1 "
                "order by at desc, number desc limit ?2",
                (run, most),
            ).fetchall()
            return [Told(r["run"], r["at"], bool(r["grave"]), r["text"], r["times"]) for r in rows]

    def disclosed(self, run: str | None = None) -> list[Disclosed]:
        """What each site sent, by kind, in one run or in all, in site order."""
        with self._reading():
            rows = self._db.execute(
                "select site, kind, sum(messages) as messages, sum(numbers) as numbers from disclosed "
                "where ?1 is null or run = ?1 group by site, kind order by site, kind",
                (run,),
            ).fetchall()
            return [Disclosed(r["site"], r["kind"], r["messages"], r["numbers"]) for r in rows]


class Chronicler:
    """Hears notices and events on the loop, and writes them down when asked to, in whichever thread that is."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._told: list[Told] = []
        self._messages: Counter[tuple[str, str, str]] = Counter()
        self._numbers: Counter[tuple[str, str, str]] = Counter()

    def notice(self, notice: n.Notice, _measured: Lap) -> None:
        """Remember its words, where a table does not show it better."""
        if text := worded(notice):
            told = Told(getattr(notice, "run", ""), utc_now(), is_grave(notice), text, 1)
            with self._turn:
                self._told.append(told)

    def heard(self, event: Event) -> None:
        match event:
            case SiteJoined(hello=message):
                site = message.site
            case Received(site=site, message=message):
                pass
            case _:
                return
        key = (getattr(message, "run", ""), site, type(message).__name__)
        with self._turn:
            self._messages[key] += 1
            self._numbers[key] += numbers_in(message)

    def flush(self, chronicle: Chronicle) -> None:
        with self._turn:
            told, messages, numbers = self._told, self._messages, self._numbers
            self._told, self._messages, self._numbers = [], Counter(), Counter()
        if told or messages:
            chronicle.write(told, messages, numbers)
