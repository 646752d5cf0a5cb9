"""The disclosure ledger: an append-only, hash-chained JSONL file of everything that this agent sent.

Each line carries the hash of the line before it, so a line that is changed, removed or inserted later breaks the chain.
At each run's end the site signs the hash of the last line, its head, and the coordinator countersigns it. A rewritten
file with a new chain cannot have these two signatures (`audit`). An entry is synced to disk before its message is sent.
The ledger is also the site's memory of its answers over restarts (`site_agent.consent.memory`).
"""

from site_agent.ledger.ledger import GENESIS, Disclosed, HeadSigner, Ledger, read_ledger

__all__ = ["GENESIS", "Disclosed", "HeadSigner", "Ledger", "read_ledger"]
