"""The JSON Schemas of federation.toml, study.toml, agent.toml and policy.toml, for editors:
docs/reference/schemas.

Made from the pydantic models, with the explanations of tools/keys.toml as descriptions. They are
draft 7, which taplo reads.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from render import ROOT

from coordinator.config.federation_toml import MODELS, Configuration
from coordinator.config.study_toml import Study
from coreg_core.objectives.agreement import MOST_COLUMNS
from site_agent.config.options import TABLE
from site_agent.config.settings import NOT_IN_FILE, AgentSettings
from site_agent.consent.policy import Policy
from site_agent.data.inputs import Inputs

FOLDER = ROOT / "docs" / "reference" / "schemas"
EXPLAINED: dict[str, dict[str, str]] = tomllib.loads(
    (ROOT / "tools" / "keys.toml").read_text(encoding="utf-8")
)
without = [key for key, field in Policy.model_fields.items() if not field.description]
if without:
    sys.exit(f"site_agent/consent/policy.py: {', '.join(without)}: a Field needs a description.")
EXPLAINED["policy"] = {key: str(field.description) for key, field in Policy.model_fields.items()}
HIDDEN = frozenset({"trained"})  # terms of a plan that no file has
# The table of keys.toml for each section's class; other sections have their class's name in lower
# case.
SECTIONS = {
    "AgreementSection": "model",
    "IterationSection": "solver",
    "TimeoutSection": "timeouts",
}
NUMBER = {"type": "number", "minimum": 0}
SEVERAL = {"type": "array", "items": NUMBER, "minItems": 1, "maxItems": MOST_COLUMNS}
COUPLING = {
    "anyOf": [
        NUMBER,
        SEVERAL,
    ],
    "default": 0.01,
    "description": EXPLAINED["model"]["coupling"],
}


def explanation(table: str, key: str) -> str:
    """The explanation of a key; ends the command where there is none."""
    try:
        return EXPLAINED[table][key]
    except KeyError:
        raise SystemExit(f"tools/keys.toml: no explanation of {key} in [{table}].") from None


def described(section: dict[str, Any], table: str) -> dict[str, Any]:
    """A section with an explanation of each key, without what a TOML file cannot hold."""
    properties = {}
    for key, shape in section["properties"].items():
        if key in HIDDEN:
            continue
        kept = shape_of(shape)
        properties[key] = kept | {"description": explanation(table, key)}
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": section["required"]} if "required" in section else {})


def shape_of(shape: dict[str, Any]) -> dict[str, Any]:
    """A key's shape as a TOML file can hold it: no null, and text where pydantic names no type (a
    source is a path or a query).
    """
    dropped = ("title", "description", "default")
    kept = {name: value for name, value in shape.items() if name not in dropped}
    if shape.get("default") is not None:
        kept["default"] = shape["default"]
    choices = [choice for choice in kept.pop("anyOf", ()) if choice != {"type": "null"}]
    if choices:
        kept |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    if not {"type", "anyOf", "enum"} & kept.keys():
        kept["type"] = "string"
    return kept


def of_sections(model: Any) -> dict[str, Any]:
    """federation.toml and study.toml: a table for each section; what [model] holds depends on its
    objective.
    """
    plain = model.model_json_schema()
    definitions = {}
    for name, section in plain["$defs"].items():
        table = SECTIONS.get(name, name.removesuffix("Section").lower())
        definitions[name] = described(section, table)
    definitions["AgreementSection"]["properties"]["coupling"] = COUPLING
    properties: dict[str, Any] = {}
    for key, shape in plain["properties"].items():
        if "oneOf" in shape:
            properties[key] = by_objective(definitions)
        else:
            properties[key] = {"$ref": shape["$ref"]}
    made = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "definitions": definitions,
    }
    return made | {"required": plain["required"]}


def by_objective(definitions: dict[str, Any]) -> dict[str, Any]:
    """[model]: the keys of its objective.

    An editor completes from all of them, and a fault is that of the one that counts.
    """
    chosen: dict[str, Any] = {"$ref": "#/definitions/AgreementSection"}
    every = dict(definitions["AgreementSection"]["properties"])
    for objective in [name for name in MODELS if name != "agreement"]:
        name = MODELS[objective].__name__
        every = definitions[name]["properties"] | every
        definitions[name]["required"] = sorted(
            {*definitions[name].get("required", ()), "objective"}
        )
        said = {"properties": {"objective": {"const": objective}}, "required": ["objective"]}
        chosen = {"if": said, "then": {"$ref": f"#/definitions/{name}"}, "else": chosen}
    shown = {key: {"description": shape["description"]} for key, shape in every.items()}
    return {"type": "object", "properties": shown, **chosen}


def agent() -> dict[str, Any]:
    """agent.toml: one table given flat, or a section [data.NAME] for each."""
    plain = AgentSettings.model_json_schema()
    for key in (*NOT_IN_FILE, "data"):
        del plain["properties"][key]
    made = described(plain, "agent")
    inputs = described(Inputs.model_json_schema(), "data")
    properties = made["properties"] | {
        key: inputs["properties"][name] for key, name in TABLE.items() if key != "data"
    }
    sections = {"type": "object", "additionalProperties": {"$ref": "#/definitions/data"}}
    properties["data"] = {
        "anyOf": [{"type": "string"}, sections],
        "description": explanation("agent", "data"),
    }
    return made | {"properties": properties, "definitions": {"data": inputs}}


def files() -> dict[Path, str]:
    """Every schema by its path."""
    made = {
        "federation": of_sections(Configuration),
        "study": of_sections(Study),
        "agent": agent(),
        "policy": described(Policy.model_json_schema(), "policy"),
    }
    return {FOLDER / f"{name}.json": _text(name, schema) for name, schema in made.items()}


def _text(name: str, schema: dict[str, Any]) -> str:
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"coreg {name}.toml"}
    text = json.dumps(head | schema, indent=1, ensure_ascii=False).replace(
        "#/$defs/", "#/definitions/"
    )
    return f"{text}\n"
