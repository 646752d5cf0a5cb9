"""Damaged files of every kind that a command reads: each command ends with a documented exit code,
and never with a traceback.

A seed decides file, damage and command; it is in the test's failure. COREG_FUZZ is the number of
seeds (`make fuzz`: 100,000), COREG_FUZZ_FROM the first one. `FOUND` lists seeds that once failed.
"""

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
from federation import ADDITIVE, federation, run, until

from coreg_wire.terminal.command_line import EXIT_CODES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(0)]
SEEDS = int(os.environ.get("COREG_FUZZ", "200"))
FIRST = int(os.environ.get("COREG_FUZZ_FROM", "0"))
MEMORY = (
    4 << 30
)  # bytes of address space beyond what the process has: a count in a file must not reserve more
CONFIG = ("--config", "north.toml")
AGENT = "coreg-agent"
COORDINATOR = "coreg-coordinator"
MODEL = ("--model", "FILE", "--data", "north.csv")
OF = ("--federation", "co/federation.toml")
# By file: the commands that read it. FILE is its name.
CHECK = (AGENT, "check", *CONFIG)
VERIFY = (AGENT, "ledger", "north/ledger.jsonl", "--verify")
FEDERATION = "co/federation.toml"
COMMANDS = {
    "north/ledger.jsonl": [(AGENT, "ledger", "FILE"), VERIFY, (*CHECK, "--plan", "plan.json")],
    "north/checkpoints.json": [(*VERIFY, "--checkpoints", "FILE")],
    "north/site.pem": [CHECK],
    "north/ca.pem": [CHECK, VERIFY],
    "north/site.key": [CHECK],
    "co/authorised-sites": [(COORDINATOR, "revoke", "co", "west")],
    "co/federation.toml": [
        (COORDINATOR, "plan", "FILE", "--study", "first.toml"),
        (COORDINATOR, "submit", "first.toml", *OF),
    ],
    "first.toml": [
        (COORDINATOR, "plan", FEDERATION, "--study", "FILE"),
        (COORDINATOR, "submit", "FILE", *OF),
    ],
    "plan.json": [(*CHECK, "--plan", "FILE")],
    "north.toml": [CHECK, (AGENT, "runs", *CONFIG), (AGENT, "status", *CONFIG)],
    "policy.toml": [CHECK],
    "north.csv": [
        CHECK,
        (AGENT, "predict", "--model", "agreement.coreg", "--data", "FILE"),
        (
            AGENT,
            "evaluate",
            "--model",
            "agreement.coreg",
            "--model",
            "additive.coreg",
            "--data",
            "FILE",
        ),
    ],
    "north.parquet": [(AGENT, "predict", "--model", "agreement.coreg", "--data", "FILE")],
    "agreement.coreg": [(AGENT, "predict", *MODEL), (AGENT, "evaluate", *MODEL)],
    "additive.coreg": [
        (AGENT, "predict", *MODEL),
        (AGENT, "report", "--model", "FILE"),
        (AGENT, "evaluate", *MODEL),
    ],
    "runs.sqlite": [
        *((COORDINATOR, name) for name in ("runs", "status")),
        (COORDINATOR, "show", "RUN"),
        (COORDINATOR, "show", "RUN", "--json"),
    ],
    "**/state.sqlite": [(AGENT, "runs", *CONFIG), (AGENT, "runs", *CONFIG, "--json")],
    "**/service/*.sqlite": [(AGENT, "status", *CONFIG), (AGENT, "pending", *CONFIG)],
    "**/manifest.json": [(AGENT, "models", *CONFIG)],
}
UNREACHABLE = 7  # no coordinator is there: the last line of `check`, and what `status` says
# Values of another type in a manifest and in checkpoints; damaged keys in a certificate and a
# request; a schema that is no text.
FOUND = (282, 309, 914, 3242, 24427, 24752, 26786)
ODD = [
    None, True, -1, 0, 2**63, 2**200, 1e308, float("nan"), "", "x", "\ud800", "9" * 5000, [], {},
    [[]], {"": None}, ["a"] * 3,
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A federation's folder after two runs, with a file of each kind."""
    folder = tmp_path_factory.mktemp("fuzz")
    with federation(folder) as fed:
        fed.study("first")
        fed.study("second", ADDITIVE, model="")
        names = [fed.submit("first"), fed.submit("second")]
        coordinator = fed.serve()
        agents = fed.all_stay()
        until(lambda: fed.over(*names))
        for process in (*agents.values(), coordinator):
            process.send_signal(signal.SIGTERM)
        for process in (*agents.values(), coordinator):
            process.wait(30)
    for name, study in (("agreement", "first"), ("additive", "second")):
        shutil.copy(
            next(folder.glob(f"north-models/{study}/*/model.coreg")), folder / f"{name}.coreg"
        )
    keep(
        folder / "plan.json",
        run(COORDINATOR, "plan", "co/federation.toml", "--study", "first.toml", cwd=folder),
    )
    keep(
        folder / "north" / "checkpoints.json",
        run(COORDINATOR, "show", names[0], "--json", cwd=folder),
    )
    import polars as pl

    pl.read_csv(folder / "north.csv").write_parquet(folder / "north.parquet")
    with sqlite3.connect(folder / "runs.sqlite") as db:
        db.execute("pragma wal_checkpoint(truncate)")
        db.execute("pragma journal_mode = delete")
    (folder / "run").write_text(names[0])
    return folder


def keep(path, result):
    code, out, err = result
    assert code == 0, err
    path.write_text(out)


def placed(folder, name):
    """The file, by its name or a pattern: the folders of services and runs have names of
    their own.
    """
    return next(iter(sorted(folder.glob(name))))


# --- damage ---------------------------------------------------------------------------------------


def damaged(data, text, dice):
    """Other bytes: by position, by line, by a value of JSON."""
    ways = [flipped, cut, doubled, zeroed, swapped]
    if text:
        ways += [of_lines, of_lines, of_numbers, of_words]
    if data.lstrip()[:1] in (b"{", b"["):
        ways += [of_json] * 6
    out = dice.choice(ways)(bytearray(data), dice)
    if dice.random() < 0.1:
        out = dice.choice(ways)(bytearray(out), dice)
    return bytes(out)


def flipped(data, dice):
    for _ in range(dice.choice((1, 1, 1, 4, 30))):
        if data:
            data[dice.randrange(len(data))] = dice.randrange(256)
    return data


def cut(data, dice):
    if dice.random() < 0.7:
        return data[: dice.randrange(len(data) + 1)]
    return data[dice.randrange(len(data) + 1) :]


def doubled(data, dice):
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] + data[b:]


def zeroed(data, dice):
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + bytes(min(b - a, 4096)) + data[a + min(b - a, 4096) :]


def swapped(data, dice):
    a, b, c = sorted(dice.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def of_lines(data, dice):
    lines = bytes(data).splitlines(keepends=True) or [b""]
    i = dice.randrange(len(lines))
    j = dice.randrange(len(lines))
    match dice.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case _:
            lines[i] = lines[i] * dice.choice((2, 50))
    return b"".join(lines)


def of_numbers(data, dice):
    digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return data
    i = dice.choice(digits)
    return (
        data[:i]
        + dice.choice([b"-1", b"1e999", b"nan", b"0", b"9" * 400, b"''", b"true", b"[]"])
        + data[i + 1 :]
    )


def of_words(data, dice):
    words = bytes(data).split(b" ")
    words[dice.randrange(len(words))] = dice.choice(
        [b"", b"=", b"\xff\xfe", "ä\u2028".encode(), b'"', b"[", b"]", b"x" * 9999]
    )
    return b" ".join(words)


def of_json(data, dice):
    """One value of one line, or of the whole, is of another kind."""
    lines = bytes(data).splitlines() or [b""]
    which = dice.randrange(len(lines))
    try:
        value = json.loads(lines[which])
        whole = False
    except ValueError:
        try:
            value = json.loads(bytes(data))
            whole = True
        except ValueError:
            return flipped(data, dice)
    places = list(inside(value))
    if not places:
        return data
    holder, key = dice.choice(places)
    if dice.random() < 0.25:
        del holder[key]
    else:
        holder[key] = dice.choice(ODD)
    told = json.dumps(value).encode()
    if whole:
        return told
    lines[which] = told
    return b"\n".join(lines) + b"\n"


def inside(value):
    keys = ()
    if isinstance(value, dict):
        keys = value.items()
    elif isinstance(value, list):
        keys = enumerate(value)
    for key, inner in list(keys):
        yield value, key
        yield from inside(inner)


# --- the test -------------------------------------------------------------------------------------


def asked(home, name, command):
    """The command as it is typed."""
    names = {"FILE": str(placed(home, name).relative_to(home)), "RUN": (home / "run").read_text()}
    return [names.get(part, part) for part in command]


def case(home, seed, copy):
    """None, or what was wrong."""
    dice = random.Random(seed)
    name = dice.choice(list(COMMANDS))
    command = asked(home, name, dice.choice(COMMANDS[name]))
    path = placed(copy, name)
    path.write_bytes(
        damaged(path.read_bytes(), not name.endswith((".coreg", ".parquet", ".sqlite")), dice)
    )
    try:
        code, out, err = run(*command, cwd=copy)
    except BaseException as error:  # noqa: BLE001 - that is what is looked for; a panic of polars is no Exception
        return (
            f"seed {seed}: {name}: {' '.join(command)}: {type(error).__name__}: {str(error)[:300]}"
        )
    if code not in EXIT_CODES or code == 1 or "Traceback" in err:
        return f"seed {seed}: {name}: {' '.join(command)}: exit code {code}: {err[-300:]}"
    if code and not (err.strip() or out.strip()):
        return f"seed {seed}: {name}: {' '.join(command)}: exit code {code} without a word"
    return None


@pytest.mark.parametrize("half", [0, 1])
def test_no_damaged_file_ends_a_command_with_a_traceback(home, tmp_path, half):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    faults = []
    try:
        for seed in [*FOUND, *range(FIRST, FIRST + SEEDS)][half::2]:
            copy = shutil.copytree(home, tmp_path / "copy", symlinks=True)
            if (fault := case(home, seed, copy)) is not None:
                faults.append(fault)
            shutil.rmtree(copy)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:40])


def test_every_command_reads_its_file_while_it_is_whole(home, tmp_path):
    """Otherwise the damage would not be what ends a command."""
    failed = []
    for name, commands in COMMANDS.items():
        for command in commands:
            copy = shutil.copytree(home, tmp_path / "copy", symlinks=True)
            code, _, err = run(*asked(home, name, command), cwd=copy)
            if code not in (0, UNREACHABLE):
                failed.append(f"{' '.join(asked(home, name, command))}: {code}: {err[-200:]}")
            shutil.rmtree(copy)
    assert not failed, "\n".join(failed)
