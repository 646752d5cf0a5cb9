"""Generate the documentation (`--write`), or check that it is fresh (`--check`).

docs/reference/commands.md and parts of other pages come from the code. The figures of measurements
come from JSON files. The dashboard comes from a list of panels. Tables of keys and
docs/reference/schemas come from the settings' classes and tools/keys.toml. In a page, the text
between `<!-- generated: NAME -->` and `<!-- end -->` is generated.
"""

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, get_args

import dashboard
import experiments
import figures
import schemas
import studies
import typer.main
from pydantic import BeforeValidator
from render import (
    ROOT,
    count,
    filled,
    main,
    table,
)  # first: it finds the packages of an uninstalled checkout

import coordinator.cli.app
import coreg_sim.cli.app
import site_agent.cli.app
from coordinator.config.federation_toml import MODELS, Configuration
from coordinator.config.study_toml import StudySection
from coordinator.store.schema import SCHEMA_VERSION
from coreg_core.messages import PROTOCOL_VERSION, FromSite, ToSite
from coreg_core.outcomes import Outcome, advice, exit_code
from coreg_core.plan import OBJECTIVES
from coreg_wire.terminal.command_line import EXIT_CODES, human_bytes
from site_agent.config.options import OWN, TABLE
from site_agent.config.settings import NOT_IN_FILE, AgentSettings
from site_agent.consent.policy import Policy
from site_agent.data.inputs import Inputs
from site_agent.models.file import FORMAT

PROGRAMS = {
    "coreg-coordinator": typer.main.get_command(coordinator.cli.app.app),
    "coreg-agent": typer.main.get_command(site_agent.cli.app.app),
    "coreg-sim": typer.main.get_command(coreg_sim.cli.app.app),
}
WIDTH = 80
# Defaults that depend on another key.
UNSAID = {
    "min_sites": "all sites",
    "on_dropout": "the federation's",
    "sites": "the federation's",
    "ids_secret": "none",
    "listen": "none",
}
KEYS = "| key | default | values | meaning |"
UNLIMITED = 2**31 - 1  # the limit of the wire's integers is not shown
LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "maximum": "≤"}


def commands() -> Iterator[tuple[str, Any, list[str]]]:
    """Each program and each of its commands: the program's name, its command line, and the words
    that follow the name.
    """
    for program, group in PROGRAMS.items():
        yield program, group, []
        for name, command in group.commands.items():
            yield program, group, [name]
            yield from (
                (program, group, [name, inner]) for inner in getattr(command, "commands", ())
            )


OPTION = re.compile(r"\n  (--[a-z-]+)( .*(?:\n {12,}.*)*)")


def once(text: str, before: set[str]) -> str:
    """A command's help without the options that its program's commands ``before`` have in the same
    words; it adds its own.
    """
    again = list[str]()

    def left(option: re.Match[str]) -> str:
        words = " ".join(option[0].split())
        if words not in before:
            before.add(words)
            return option[0]
        again.append(option[1])
        return ""

    text = OPTION.sub(left, text)
    return (
        text + "\n" + textwrap.fill(f"As above: {', '.join(again)}.", WIDTH, initial_indent="  ")
        if again
        else text
    )


def help_pages() -> str:
    pages = [
        "# Commands",
        "",
        "`make docs` makes this page from the `--help` of each command. Each program also has",
        (
            "`--install-completion`. Options *as above* are those of a command above, in the same"
            " words."
        ),
        "",
    ]
    seen: dict[str, set[str]] = {program: set() for program in PROGRAMS}
    for program, group, words in commands():
        said = io.StringIO()
        with redirect_stdout(said):
            group.main(
                [*words, "--help"],
                prog_name=program,
                standalone_mode=False,
                terminal_width=WIDTH,
                max_content_width=WIDTH,
            )
        text = "\n".join(line.rstrip() for line in said.getvalue().rstrip().splitlines())
        text = re.sub(
            r"\n  --(help|install-completion|show-completion) .*(\n {12,}.*)*", "", text
        )  # of every program
        text = text.removesuffix("\n\nOptions:").replace("\nOptions:\n\n", "\n")
        text = once(text, seen[program])
        pages += [f"## {' '.join([program, *words])}", "", "```text", text, "```", ""]
    return "\n".join(pages)


def messages() -> str:
    rows = []
    for sender, union in (("site", FromSite), ("coordinator", ToSite)):
        names = ", ".join(f"`{kind.__name__}`" for kind in get_args(union))
        rows.append(f"| {sender} | {names} |")
    return table("| from | messages |", rows)


def plain(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case (single,):
            return plain(single)
        case tuple():
            return ", ".join(map(plain, value))
        case _:
            return str(value)


def allowed(schema: dict[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(allowed(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    match schema["type"]:
        case "array":
            items = allowed(schema["items"])
            return f"list of {items.replace('number', 'numbers').replace('text', 'texts')}"
        case "boolean":
            return "`true`, `false`"
        case "string":
            return "path" if schema.get("format") == "path" else "text"
        case kind:
            return " ".join([kind, *limits(schema)])


def limits(schema: dict[str, Any]) -> list[str]:
    """The limits of a number in words."""
    known = {key: value for key, value in schema.items() if key in LIMITS and value < UNLIMITED}
    if {"minimum", "maximum"} <= known.keys():
        return [f"from {known['minimum']:g} to {known['maximum']:g}"]
    return [f"{sign} {known[key]:g}" for key, sign in LIMITS.items() if key in known]


def key_rows(
    schema: dict[str, Any], fields: dict[str, Any], explained: str, prefix: str = ""
) -> list[str]:
    rows = []
    for name, field in fields.items():
        if name in schemas.HIDDEN:
            continue
        said = (
            UNSAID[name] if field.default is None or field.default_factory else plain(field.default)
        )
        default = "required" if field.is_required() else f"`{said}`"
        values = allowed(shape := schema["properties"][name])
        if any(
            isinstance(rule, BeforeValidator) for rule in field.metadata
        ):  # a single value is a list of one
            values = f"{allowed(shape['items'])} or {values}"
        rows.append(
            f"| `{prefix}{name}` | {default} | {values} | {schemas.explanation(explained, name)} |"
        )
    return rows


def settings() -> str:
    sections: dict[str, Any] = Configuration.model_json_schema()["$defs"]
    rows = []
    for section, field in Configuration.model_fields.items():
        model: Any = MODELS["agreement"] if section == "model" else field.annotation
        rows += key_rows(sections[model.__name__], model.model_fields, section, f"[{section}] ")
    every = ", ".join(f"`{name}`" for name in MODELS)
    return table(
        KEYS,
        [
            row.replace("| `agreement` | `agreement` |", f"| `agreement` | {every} |")
            for row in rows
        ],
    )


def section(model: Any, explained: str, prefix: str = "") -> str:
    """The keys of one class of settings."""
    return table(
        KEYS, key_rows(model.model_json_schema(), dict(model.model_fields), explained, prefix)
    )


def serving() -> str:
    """Keys of agent.toml that no option has."""
    fields = {
        key: field for key, field in AgentSettings.model_fields.items() if key not in {*OWN, "data"}
    }
    return table(KEYS, key_rows(AgentSettings.model_json_schema(), fields, "agent"))


def agent() -> str:
    options: dict[str, Any] = {
        opt: param for param in PROGRAMS["coreg-agent"].params for opt in param.opts
    }
    rows = []
    fields = {
        key: (Inputs.model_fields[name], "agent" if key == "data" else "data")
        for key, name in TABLE.items()
    }
    fields |= {
        key: (AgentSettings.model_fields[key], "agent") for key in OWN if key not in NOT_IN_FILE
    }
    for key, (field, explained) in fields.items():
        option = f"--{'no-' if key in ('scale', 'labels') else ''}{key}".replace("_", "-")
        variable = options[option].envvar
        default = (
            ""
            if field.is_required() or field.default in (None, (), {})
            else f"`{plain(field.default)}`"
        )
        meaning = schemas.explanation(explained, key)
        rows.append(
            f"| `{key}` | `{option}` | {f'`{variable}`' if variable else ''} | {default} |"
            f" {meaning} |"
        )
    return table("| agent.toml | option | environment | default | meaning |", rows)


def exit_codes() -> str:
    return table(
        "| code | meaning |", [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    )


def stops() -> str:
    rows = [
        f"| {o.name} | {exit_code(o)} | {' '.join([o.value, advice(o)]).rstrip()} |"
        for o in Outcome
    ]
    return table("| stop | exit code | message |", rows)


def diabetes() -> str:
    """The demonstration's table over many draws (benchmarks/diabetes.py), with as many labels at
    each site.
    """
    draws = json.loads(
        (ROOT / "examples" / "demo" / "diabetes_draws.json").read_text(encoding="utf-8")
    )
    names = {
        "mean": "mean of labels",
        "local": "local model",
        "joined": "joined model",
        "score": "score",
    }
    rows = []
    for site, row in draws["deals"]["60 each"].items():
        cells = []
        for column in ("joined", "score"):
            change = 100 * (row[column] / row["local"] - 1)
            error = 100 * row["standard_errors"][column]
            cells.append(f"{row[column]:.1f} ({change:+.1f} ± {error:.1f} %)")
        rows.append(f"| {site} | {row['mean']:.1f} | {row['local']:.1f} | {' | '.join(cells)} |")
    return table(f"| site | {' | '.join(names.values())} |", rows)


def results(name: str) -> dict:
    """The figures of a benchmark."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def sizing() -> str:
    """Memory, time and traffic of a site (benchmarks/sizing.py)."""
    found = results("sizing")["rows"]
    rows = [
        f"| {r['form']} | {r['labelled']} | {r['shared']} | {human_bytes(r['memory'])} |"
        f" {r['factor_seconds']:.2f} s | {1000 * r['answer_seconds']:.1f} ms |"
        f" {human_bytes(r['round_bytes'])} |"
        for r in found
    ]
    return table(
        "| form | labelled rows | shared instances | memory | plan phase | an answer | bytes a"
        " round |",
        rows,
    )


def trainings() -> str:
    """Time, traffic and memory of an additive training at a site (benchmarks/sizing.py)."""
    found = results("sizing")["additive"]
    rows = [
        f"| {count(r['shared'])} | {r['sites']} | {r['seconds']:.1f} s | {human_bytes(r['sent'])} |"
        f" {human_bytes(r['memory'])} |"
        for r in found
    ]
    return table("| shared individuals | sites | time | sends | memory |", rows)


def alignment() -> str:
    """Time and memory of alignments (benchmarks/alignment.py)."""
    found = results("alignment")["rows"]
    rows = [
        f"| {r['sites']} | {count(r['ids'])} | {count(r['padded'])} | {r['seconds']:.0f} s |"
        f" {r['cpu']:.0f} s | {r['bare']:.0f} s | {r['cpu'] / r['bare']:.2f} |"
        f" {human_bytes(r['memory'])} |"
        for r in found
    ]
    headings = (
        "| sites | ids at each | padded to | time | CPU of all processes | bare X25519 | ratio |"
        " memory of an agent |"
    )
    return table(headings, rows)


def answers() -> str:
    """What an answer to each kind of question discloses (coreg_core/objectives/)."""
    rows = [
        f"| {name} | {kind} | {told.discloses} |"
        for name, objective in OBJECTIVES.items()
        for kind, told in objective.questions.items()
    ]
    return table("| objective | question | what an answer discloses |", rows)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"diabetes": diabetes, "labels": studies.by_labels},
    "docs/how-to/operate-a-coordinator.md": {
        "protocol": lambda: str(PROTOCOL_VERSION),
        "schema": lambda: str(SCHEMA_VERSION),
        "model": lambda: f"`coreg-model/{FORMAT}`",
    },
    "docs/reference/federation-toml.md": {
        "federation.toml": settings,
        "study.toml": lambda: section(StudySection, "study", "[study] "),
        **{n: lambda n=n: section(MODELS[n], n, "[model] ") for n in MODELS if n != "agreement"},
    },
    "docs/reference/agent-toml.md": {"agent.toml": agent, "serving": serving},
    "docs/reference/policy-toml.md": {"policy.toml": lambda: section(Policy, "policy")},
    "docs/reference/exit-codes.md": {"exit codes": exit_codes, "stops": stops},
    "docs/reference/protocol.md": {
        "messages": messages,
        "answers": answers,
        "protocol": lambda: str(PROTOCOL_VERSION),
    },
}


PAGES: dict[str, Callable[[], dict[str, str]]] = {
    "docs/research/performance.md": lambda: {
        **figures.performance(),
        "trainings": trainings(),
        "sizing": sizing(),
        "alignment": alignment(),
    },
    "docs/research/benefit.md": studies.benefit,
    "docs/research/papers.md": experiments.parts,
    **{
        page: lambda parts=parts: {name: make() for name, make in parts.items()}
        for page, parts in PARTS.items()
    },
}


def expected() -> dict[Path, str]:
    """Every generated file with its expected text."""
    return {
        ROOT / "docs" / "reference" / "commands.md": help_pages(),
        **{ROOT / name: filled(ROOT / name, parts()) for name, parts in PAGES.items()},
        **schemas.files(),
        **figures.pictures(),
        dashboard.TARGET: dashboard.text(),
    }


if __name__ == "__main__":
    raise SystemExit(main(__doc__, expected))
