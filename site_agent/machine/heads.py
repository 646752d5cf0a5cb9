"""Heads of the log: every member signs its own, and compares the others' with it. A difference is a breach."""

from collections.abc import Iterable, Mapping

from coreg_core.protocol.messages import Head
from site_agent.machine.run_keys import Keys, canonical


def signed_bytes(run: str, head: Head) -> bytes:
    """The bytes of a head that its site signs."""
    return canonical("coreg head 1", run, head.site, head.chain, head.state, head.content)


def heads_fault(
    run: str, heads: Iterable[Head], own: Head, signers: Mapping[str, str], keys: Keys | None
) -> str | None:
    """How another site's log or state differs from this site's, or None; ``signers``: session keys by site."""
    found = {head.site: head for head in heads}
    if set(found) != set(signers):
        return f"heads of {', '.join(sorted(found)) or 'no site'}; expected {', '.join(sorted(signers))}."
    for site, key in signers.items():
        head = found[site]
        if key and (keys is None or not keys.is_signed(key, signed_bytes(run, head), head.signature)):
            return f"the head of {site} has no valid signature of that site: it was changed in transit."
    if others := sorted(site for site, head in found.items() if head.chain != own.chain):
        return f"the coordinator sent {', '.join(others)} another sum than {own.site} in the same step."
    if others := sorted(site for site, head in found.items() if head.state != own.state):
        return f"{', '.join(others)} computed another state than {own.site} from the same sums."
    return None
