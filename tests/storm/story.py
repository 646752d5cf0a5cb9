"""A seed draws a story: the studies of a federation, and the faults that it lives through."""

import random
from dataclasses import dataclass

from tests.storm.world import SITES

_ALIGNED = '[study]\nname = "{name}"\ndata = "patients"\n[model]\nobjective = '
_STUDY = "[alignment]\nalign = false\n" + _ALIGNED  # the ids are equal by agreement
STUDIES = {
    "agreement": f'{_STUDY}"agreement"\ncoupling = 0.1\n',
    "path": f'{_STUDY}"agreement"\ncoupling = [0.01, 1.0]\n',
    "sweeps": (
        f'{_STUDY}"agreement"\ncoupling = 1.0\n[solver]\nname ='
        ' "block-coordinate-descent"\nmax_rounds = 4\n'
    ),
    "additive": (
        f'{_STUDY}"additive"\nrows_per_feature = 5\nnoise = 0.0\nlabel_noise = 0.0\nleast_labels ='
        " 5\nleast_rows = 10\n"
    ),
    "scoring": f'{_STUDY}"scoring"\n'.replace("patients", "new"),
    "aligned": f'{_ALIGNED}"agreement"\ncoupling = 0.1\n',
}
NEEDS = {"scoring": "additive"}  # the study whose models it uses: the run before it
# How often each is drawn. "old store" and "old site" put an older backup of the run store, or of a
# ledger, in its place.
KINDS = {
    "kill": 5, "power cut": 3, "break": 4, "cut off": 3, "stall": 3, "slow disk": 2,
    "full disk": 1.5, "noise": 1, "lie": 1,
    "cancel": 1, "refuse": 0.5, "old store": 1, "old site": 0.5,
}  # fmt: skip
EVERYWHERE = ("coordinator", *SITES)
GOOD = {"CONVERGED", "MAX_ROUNDS"}  # outcomes with models
# A second stream: what operators do, the coordinator's power, and clocks.
OPERATED = ("reload", "revoke", "renew", "unlist", "power cut", "clock", "wrong peer")
# A third one: a process that is killed at so many of its next answers ("crash loop"), until no
# further attempt may begin.
JUMPS = (
    -18_000.0,
    300.0,
    18_000.0,
    86_400.0 * 400,
)  # seconds; the last one is beyond the end of a site's certificate
AT_A_MESSAGE = ("kill", "power cut", "break", "full disk", "noise", "lie", "old store", "old site")
AT_A_SITE = ("power cut", "break", "full disk", "noise", "lie", "cut off", "stall", "old site")
STORM = 90.0  # seconds in which studies are submitted and faults begin
PATIENCE = 3600.0  # virtual seconds after the last fault until every run must have ended
MANY = 12  # faults of a storm at most
LONG = 700.0  # seconds of absence beyond every timeout of the coordinator
# Tasks of a process when no run is under way. One tries the enrolment port, which a storm has not.
IDLE = {"coordinator": 6 + 2 * len(SITES)} | dict.fromkeys(SITES, 7)


@dataclass(frozen=True)
class Fault:
    """A fault at a process or a run, for some seconds; with ``moment``, when the next message of
    that name leaves.

    It is the site's next message; for the coordinator, and for a receipt (Fetched), that of any
    site.
    """

    at: float
    kind: str
    where: str
    seconds: float
    moment: str = ""

    def __str__(self) -> str:
        when = ""
        if self.moment:
            when = f" at the next {self.moment}"
        return f"{self.at:7.2f} s  {self.kind} {self.where}{when} for {self.seconds:.2f} s"


@dataclass(frozen=True)
class Story:
    """What a seed draws: (time, study) of each run, and the faults in order; ``asks``: operators
    approve each run.
    """

    seed: int
    runs: tuple[tuple[float, str], ...]
    faults: tuple[Fault, ...]
    asks: bool = False

    def __str__(self) -> str:
        submitted = [
            f"{at:7.2f} s  run-{i} of the study {study} is submitted"
            for i, (at, study) in enumerate(self.runs)
        ]
        approved = ["   0.00 s  every site's operator approves each run"] * self.asks
        return "\n".join(
            sorted(
                [*approved, *submitted, *map(str, self.faults)], key=lambda x: float(x.split()[0])
            )
        )


def story_of(seed: int) -> Story:
    """The story of a seed."""
    chance = random.Random(seed)
    runs: list[tuple[float, str]] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.uniform(0, 0.6 * STORM)
        study = chance.choice(list(STUDIES))
        if study in NEEDS:
            runs.append((at, NEEDS[study]))
        runs.append((at, study))
    asks = chance.random() < 0.2
    faults = []
    for _ in range(chance.randrange(MANY + 1)):
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        where = chance.choice(EVERYWHERE)
        if kind in ("cancel", "refuse"):
            where = f"run-{chance.randrange(len(runs))}"
        elif kind in AT_A_SITE:
            where = chance.choice(SITES)
        elif kind == "old store":
            where = "coordinator"
        # Faults cluster around a moment in which something happens: a run takes a second or two of
        # virtual time.
        begun = chance.choice(runs)[0]
        at = begun + chance.expovariate(0.5) if chance.random() < 0.8 else chance.uniform(0, STORM)
        seconds = min(chance.expovariate(0.1), 60.0)
        moment = (
            chance.choice(("Offer", "Answer", "Fetched", "", "", ""))
            if kind in AT_A_MESSAGE
            else ""
        )
        at = begun if moment in ("Offer", "Fetched") else at  # a run has few of them
        if (
            kind == "kill" and where in SITES and chance.random() < 0.2
        ):  # away for longer than the coordinator waits
            seconds = chance.uniform(LONG, 5 * LONG)
            faults.append(
                Fault(
                    at + chance.uniform(0, seconds), "kill", "coordinator", chance.expovariate(0.1)
                )
            )
        faults.append(Fault(at, kind, where, seconds, moment))
    chance = random.Random(
        f"operators of {seed}"
    )  # a stream of its own: the draws above stay as they are
    for _ in range(chance.choice((0, 0, 1, 2))):
        kind = chance.choice(OPERATED)
        where = chance.choice(
            {"reload": ("coordinator",), "clock": EVERYWHERE, "power cut": ("coordinator",)}.get(
                kind, SITES
            )
        )
        at = chance.choice(runs)[0] + chance.expovariate(0.3)
        moment = (
            chance.choice(("Offer", "Answer", "Fetched", "Fetched")) if kind == "power cut" else ""
        )
        faults.append(Fault(at, kind, where, min(chance.expovariate(0.05), 120.0), moment))
    chance = random.Random(f"crash loops of {seed}")
    if chance.random() < 0.1:
        times = float(chance.randint(2, 12))
        faults.append(
            Fault(chance.choice(runs)[0], "crash loop", chance.choice(EVERYWHERE), times, "Answer")
        )
    return Story(seed, tuple(runs), tuple(sorted(faults, key=lambda fault: fault.at)), asks)
