"""A member, or a coordinator, that lies in each message of a kind; then it is honest again.

In each story one party says something else than its code would. What must hold: every process goes
on, the honest agents keep their sessions, the coordinator's log names a member that lied, and the
next run ends with models. ``python -m tests.storm.liars [STORY …]`` prints each story's result as
JSON; DAMAGED=2000 is the number of damaged messages at each end (40).
"""

import asyncio
import base64
import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding

from coreg_core import messages as m
from coreg_core.messages import (
    Answer,
    Countersigned,
    Fetched,
    Hello,
    LedgerHead,
    Offer,
    Part,
    Proposal,
    Renewed,
    Step,
    Words,
)
from coreg_core.objectives.setting import KEYS
from coreg_wire.identity.names import load_certificates
from coreg_wire.transport.codec import frames_of
from site_agent.identity.identity import check_identity
from tests.storm.loop import VirtualLoop, followed, leave
from tests.storm.network import Lie
from tests.storm.simulation import alive, short_secrets
from tests.storm.story import GOOD, STUDIES
from tests.storm.world import SITES, World

LIAR = "west"
VICTIM = "south"
HONEST = tuple(site for site in SITES if site != LIAR)
DAMAGED = int(os.environ.get("DAMAGED", "40"))  # messages at each end


Maker = Callable[[World], Lie]


@dataclass(frozen=True)
class Story:
    """A lie in the first run; ``named``: words of the coordinator's log, or of the victim's."""

    lie: Maker
    study: str = "agreement"
    named: str = LIAR
    of_coordinator: bool = False
    interrupts: bool = False  # the others' sessions, too: what a damaged roster does, for example


# --- a member -------------------------------------------------------------------------------------


def of(kind: type, change: Callable[[Any], Any]) -> Maker:
    """In place of each message of that kind."""

    def lie(message: Any) -> list[Any]:
        if isinstance(message, kind):
            return [change(message)]
        return [message]

    return lambda _world: lie


def of_answers(change: Callable[[Answer], Any]) -> Maker:
    """In place of each answer that has words or parts, but for keys."""

    def changed(answer: Answer) -> Any:
        if m.payload_size(answer) and answer.report.question != KEYS:
            return change(answer)
        return answer

    return of(Answer, changed)


def words(answer: Answer, values: Any) -> Answer:
    return replace(answer, summed=Words(np.asarray(values, dtype="<u8")))


def parts(*sizes: int, receiver: str = "", sender: str = LIAR) -> tuple[Part, ...]:
    return tuple(Part(sender, receiver, bytes(size)) for size in sizes)


def later_head(fetched: Fetched) -> Fetched:
    return replace(fetched, head=replace(fetched.head, lines=2**63))


def replayed(_world: World) -> Lie:
    """The words of its first answer, again and again."""
    first = list[Words | None]()

    def lie(message: Any) -> list[Any]:
        if not isinstance(message, Answer) or message.summed is None:
            return [message]
        first.append(message.summed)
        return [replace(message, summed=first[0])]

    return lie


def flood(message: Any) -> list[Any]:
    if isinstance(message, Answer):
        return [message] * 30
    return [message]


# --- a coordinator --------------------------------------------------------------------------------


def look_alike(name: str) -> Maker:
    """The plan has another name for one of its members."""

    def change(proposal: Proposal) -> Proposal:
        plan = proposal.plan
        membership = replace(plan.membership, sites=tuple(sorted(("north", "south", name))))
        return replace(proposal, plan=replace(plan, membership=membership))

    return of(Proposal, change)


def invented(proposal: Proposal) -> Proposal:
    """A plan with 37 invented sites and without keys."""
    sites = tuple(sorted([VICTIM, *(f"z{i:02d}" for i in range(37))]))
    membership = replace(proposal.plan.membership, sites=sites, min_sites=38)
    return replace(proposal, plan=replace(proposal.plan, membership=membership), keys=())


def without_the_victim(proposal: Proposal) -> Proposal:
    membership = replace(proposal.plan.membership, sites=("north", "west", "z"))
    return replace(proposal, plan=replace(proposal.plan, membership=membership))


def large_step(step: Step) -> Step:
    return replace(step, summed=Words(np.zeros(1 << 20, dtype="<u8")))


def before_each_plan(*said: Any) -> Maker:
    """These messages come before each plan."""

    def lie(message: Any) -> list[Any]:
        if isinstance(message, Proposal):
            return [*said, message]
        return [message]

    return lambda _world: lie


def certificate_of_version_6(world: World) -> Lie:
    own = check_identity(world.folder / VICTIM).certificate_pem
    der = load_certificates(own, "it")[0].public_bytes(Encoding.DER)
    at = der.index(b"\xa0\x03\x02\x01\x02") + 4
    text = base64.encodebytes(der[:at] + b"\x05" + der[at + 1 :]).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"
    return before_each_plan(Renewed(pem))(world)


# --- random damage --------------------------------------------------------------------------------

_NUMBERS = (0, -1, 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 1e300, float("nan"), float("inf"))
_TEXTS = ("", "x", "ſouth", "south\u3164", "a\nb", "north", "west", "x" * 20_000)


def damage(chance: random.Random, value: Any) -> Any:
    """Another value in some field, at any depth."""
    names = [each.name for each in fields(value)]
    name = chance.choice(names)
    return _with(value, name, _damaged(chance, getattr(value, name)))


def _with(value: Any, name: str, other: Any) -> Any:
    """As `replace`, without the checks of the class."""
    made = object.__new__(type(value))
    made.__dict__.update({each.name: getattr(value, each.name) for each in fields(value)})
    made.__dict__[name] = other
    return made


def _damaged(chance: random.Random, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case Words():
            count = chance.choice((0, 1, len(value.values) + 1, 5_000))
            return Words(np.full(count, chance.getrandbits(64), dtype="<u8"))
        case bytes():
            return chance.randbytes(chance.choice((0, 1, len(value) + 1, 5_000)))
        case int() | float():
            other = chance.choice(_NUMBERS)
            if isinstance(value, float):
                return float(other)
            if abs(other) < 2**63:
                return int(other)
            return 2**63 - 1
        case str():
            return chance.choice(_TEXTS)
        case tuple():
            inner = [_damaged(chance, each) for each in value[:1]]
            return chance.choice(((), value * 2, value * 1_000, (*inner, *value[1:])))
        case _ if is_dataclass(value):
            return damage(chance, value)
        case _:
            return value


class Damage:
    """Most messages are damaged: a field, or some bytes."""

    def __init__(self, world: World):
        self.chance = random.Random(7)
        self.count = 0

    def __call__(self, message: Any) -> list[Any]:
        if isinstance(message, Hello) or self.chance.random() < 0.3:
            return [message]
        self.count += 1
        if self.chance.random() < 0.3:
            frame = bytearray(next(iter(frames_of(message))))
            for _ in range(self.chance.randint(1, 4)):
                frame[self.chance.randrange(len(frame))] = self.chance.randrange(256)
            return [bytes(frame)]
        try:
            return list(frames_of(damage(self.chance, message)))
        except (ValueError, TypeError, OverflowError):  # the sender's own encoder refuses it
            return [message]


# --- the stories ----------------------------------------------------------------------------------

_LONG_AGO = "2026-01-01T00:00:00+00:00"
_HEAD = Countersigned("run-9", LedgerHead(2**40, "0" * 64, _LONG_AGO), _LONG_AGO, "", "00")

STORIES = {
    # a member
    "a head of 2^63 lines": Story(of(Fetched, later_head)),
    "10,000 parts for all": Story(of_answers(lambda a: replace(a, parts=parts(*[17] * 10_000)))),
    "a part for all in an agreement": Story(of_answers(lambda a: replace(a, parts=parts(400)))),
    "a part for itself": Story(of_answers(lambda a: replace(a, parts=parts(48, receiver=LIAR)))),
    "a part in the name of another": Story(
        of_answers(lambda a: replace(a, parts=parts(48, receiver="north", sender="south"))),
        "additive",
    ),
    "a large part in an additive training": Story(
        of_answers(lambda a: replace(a, parts=parts(1_000_000))), "additive"
    ),
    "900,000 words": Story(of_answers(lambda a: words(a, np.zeros(900_000)))),
    "a word short": Story(of_answers(lambda a: words(a, a.summed.values[:-1]))),
    "words that are all ones": Story(
        of_answers(lambda a: words(a, np.full(len(a.summed.values), 2**64 - 1))),
        named="the sum was changed in transit",
    ),
    "the words of its first answer again": Story(replayed),
    "another question": Story(
        of_answers(lambda a: replace(a, report=replace(a.report, question="tally")))
    ),
    "an unknown outcome": Story(
        of_answers(lambda a: replace(a, report=replace(a.report, outcome="BEST")))
    ),
    "200 million instances": Story(
        of(Offer, lambda offer: replace(offer, n_unlabelled=200_000_000))
    ),
    "each answer 30 times": Story(lambda _world: flood),
    "damage": Story(Damage, named="broke the protocol"),
    # a coordinator
    "a filler in a name": Story(look_alike("west\u3164"), of_coordinator=True),
    "a Cyrillic letter in a name": Story(look_alike("w\u0435st"), of_coordinator=True),
    "a name that is a filler": Story(look_alike("\u3164"), of_coordinator=True),
    "a name that forges a line": Story(look_alike("west; 3 sites in all"), of_coordinator=True),
    "38 invented sites": Story(of(Proposal, invented), "additive", of_coordinator=True),
    "a plan without the site": Story(of(Proposal, without_the_victim), of_coordinator=True),
    "an approval of 1e300 s": Story(
        of(Proposal, lambda p: replace(p, approval=1e300)), of_coordinator=True
    ),
    "a certificate of version 6": Story(certificate_of_version_6, of_coordinator=True),
    "a head that was never signed": Story(before_each_plan(_HEAD), of_coordinator=True),
    "8 MiB in a step": Story(of(Step, large_step), of_coordinator=True),
    "a step without a plan": Story(before_each_plan(Step("run-7", 0, 3)), of_coordinator=True),
    "damage of the coordinator's": Story(Damage, of_coordinator=True),
}
_HEARD = {  # words of the victim's own log, or of what it says to the coordinator
    "38 invented sites": "without the keys of its sites",
    "a plan without the site": "does not list",
    "a certificate of version 6": "certificate",
    "a head that was never signed": "not signed by this site's key",
}


def lived_through(name: str) -> list[str]:
    """What the story breaks."""
    story = STORIES[name]
    chance = random.Random(1)
    loop = VirtualLoop(chance)
    broken = list[str]()
    folder = tempfile.TemporaryDirectory(
        prefix="liar-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    )
    with folder as place, followed() as durable, short_secrets():
        world = World(Path(place), loop, chance, durable, asks=False)
        world.jitter = lambda _low, _high: 0.1
        with alive(world, loop):
            loop.run_until_complete(_live(world, name, story, broken))
    return broken


async def _live(world: World, name: str, story: Story, broken: list[str]) -> None:
    network = world.network
    network.runs |= {f"run-{number}" for number in range(DAMAGED + 2)}
    for process in ("coordinator", *SITES):
        world.start(process)
    await asyncio.sleep(2.0)
    lie = story.lie(world)
    (network.lied_to if story.of_coordinator else network.liars)[
        VICTIM if story.of_coordinator else LIAR
    ] = lie
    number = 0
    while True:
        await _run(world, story.study, number)
        number += 1
        if not isinstance(lie, Damage) or lie.count >= DAMAGED:
            break
    network.liars.clear()
    network.lied_to.clear()
    for run in world.runs().values():
        if run.ended is None:
            world.cancel(run.run)
    await asyncio.sleep(60.0)
    stop = await _run(world, story.study, number)
    if stop not in GOOD:
        broken.append(f"the next run ended as {stop}")
    broken += world.ends
    _check(world, name, story, broken)


async def _run(world: World, study: str, number: int) -> str | None:
    """Submit a run, and wait for its end for a while; how it ended."""
    run = f"run-{number}"
    world.submit(world.plan_of(run, STUDIES[study]))
    for _ in range(40):
        await asyncio.sleep(2.0)
        if run in (found := world.runs()) and found[run].ended is not None:
            return found[run].stop
    world.cancel(run)
    await asyncio.sleep(5.0)
    return None


def _check(world: World, name: str, story: Story, broken: list[str]) -> None:
    """What the logs say."""
    texts = {
        site: [notice.text for who, notice in world.notices if who == site]
        for site in ("coordinator", *SITES)
    }
    if story.of_coordinator:
        expected = _HEARD.get(name, "broke the protocol")
        where = texts[VICTIM] + texts["coordinator"]
    else:
        expected = story.named
        where = texts["coordinator"]
        for site in HONEST:
            lost = [text for text in texts[site] if text.startswith("not connected")]
            if lost:
                broken.append(f"{site} lost its session: {lost[0]}")
    if not any(expected in text for text in where):
        broken.append(f"no log says {expected!r}: {where[-4:]}")


if __name__ == "__main__":  # no clean-up: tasks of the dead must never run again
    code = 0
    try:
        for each in sys.argv[1:] or STORIES:
            print(json.dumps({"story": each, "broken": lived_through(each)}), flush=True)
    except Exception:  # noqa: BLE001 - every defect of the simulator
        traceback.print_exc()
        code = 1
    leave(code)
