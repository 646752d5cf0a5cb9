"""A plan as a JSON file: `coreg-coordinator plan` writes it, and an agent checks it without a connection.

It has the same limits as a plan on the wire, since the wire's reader reads it.
"""

import json
from pathlib import Path

from coreg_core.errors import BadData, UsageError
from coreg_core.protocol.plan import Plan, plan_fault, plan_from_dict
from coreg_wire.transport.fields import fill, read
from coreg_wire.v1 import federation_pb2 as pb


def read_plan(path: Path) -> Plan:
    """Read a plan, or an object with a key "plan", as `coreg-agent pending --json` and `show --json` print it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        plan = plan_from_dict(value.get("plan", value))
        message = pb.Plan()
        fill(message, plan)
        plan = read(Plan, message)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadData) as error:
        raise UsageError(
            f"{path}: not a plan ({type(error).__name__}: {error}). `coreg-coordinator plan federation.toml` writes one."
        ) from None
    if (fault := plan_fault(plan)) is not None:
        raise UsageError(f"{path}: {fault}")
    return plan
