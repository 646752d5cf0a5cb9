"""The disclosure ledger: an append-only, hash-chained JSONL file of everything that this agent sent.

Each line carries the hash of the line before it, so a line that is changed, removed or put in later breaks the chain from there
on. At each run's end the site signs the hash of the last line, its head, and the coordinator countersigns it: whoever
writes the file anew, chain and all, cannot make these two signatures for it (`audit`). An entry is on disk, and not in the
system's memory alone, before its message is on the wire. Beyond a size the file is put aside, and the next one goes on
(`files`). It is also what the site remembers of its answers over restarts (`memory`).
"""

from site_agent.ledger.entries import Disclosed
from site_agent.ledger.files import GENESIS, read_ledger
from site_agent.ledger.replay import remember
from site_agent.ledger.signing import HeadSigner
from site_agent.ledger.writer import Ledger, operators_of, quota_of

__all__ = [
    "GENESIS",
    "Disclosed",
    "HeadSigner",
    "Ledger",
    "operators_of",
    "quota_of",
    "read_ledger",
    "remember",
]
