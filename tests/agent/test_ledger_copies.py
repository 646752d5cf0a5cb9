"""A ledger beside the last head that the coordinator countersigned: an older copy, or another ledger."""

import dataclasses
import hashlib

import pytest

from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Leaving, LedgerHead
from site_agent.ledger import Ledger


def write(path, messages):
    ledger = Ledger(path)
    for message in messages:
        ledger.record(message)
    ledger.close()


def test_an_older_copy_and_another_ledger_are_found_by_the_last_countersigned_head(tmp_path):
    path = tmp_path / "l"
    write(path, [Leaving("1"), Leaving("2"), Leaving("3")])
    whole = path.read_bytes().splitlines(keepends=True)
    head = LedgerHead(2, hashlib.sha256(whole[1].rstrip(b"\n")).hexdigest(), "2026-01-01T00:00:00.000+00:00")
    ledger = Ledger(path)
    ledger.compare(head)
    ledger.compare(dataclasses.replace(head, lines=0, last=""))
    with pytest.raises(StorageError, match=r"it has 3 lines, and the coordinator countersigned 4"):
        ledger.compare(dataclasses.replace(head, lines=4))
    with pytest.raises(StorageError, match=r"its line 2 is not the one that the coordinator countersigned"):
        ledger.compare(dataclasses.replace(head, last="0" * 64))
    ledger.close()
    path.write_bytes(whole[0])  # restored, and grown again
    write(path, [Leaving("other"), Leaving("3")])
    ledger = Ledger(path)
    with pytest.raises(StorageError, match=r"an older copy of this site's ledger, or another one"):
        ledger.compare(head)
    ledger.close()
