"""The disclosure ledger: an append-only, hash-chained JSONL file of everything that this agent
sent.

At each run's end both sides sign the hash of the last line, which pins all before it (`audit`). An
entry is synced to disk before its message is sent. It is also the site's memory of its answers over
restarts (`site_agent.consent.memory`).
"""

from site_agent.ledger.ledger import GENESIS, Disclosed, HeadSigner, Ledger, read_ledger

__all__ = ["GENESIS", "Disclosed", "HeadSigner", "Ledger", "read_ledger"]
