"""A plan as a file, JSON: `coreg-coordinator plan` writes it, and an agent judges it before anybody is dialled.

Held to the same limits as one that arrives on the wire, since it is read back through the wire's own reader.
"""

import json
from pathlib import Path

from coreg_core.errors import BadData, UsageError
from coreg_core.protocol.plan import Plan, plan_fault, plan_from_dict
from coreg_wire.transport.fields import fill, read
from coreg_wire.v1 import federation_pb2 as pb


def read_plan(path: Path) -> Plan:
    """A plan's JSON; or an object that has one under "plan", as `coreg-agent pending --json` and `show --json` tell it.

    Raises
    ------
    UsageError
        missing, not JSON, no plan, beyond a plan's limits, or one that cannot be carried out.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        plan = plan_from_dict(told.get("plan", told))
        message = pb.Plan()
        fill(message, plan)
        plan = read(Plan, message)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadData) as error:
        raise UsageError(
            f"{path}: no plan ({type(error).__name__}: {error}). `coreg-coordinator plan federation.toml` writes one."
        ) from None
    if (fault := plan_fault(plan)) is not None:
        raise UsageError(f"{path}: {fault}")
    return plan
