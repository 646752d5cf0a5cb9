"""What was scored and opened outlasts the process, and an answer waits for its record."""

from dataclasses import replace

import numpy as np
import pytest
from machine.tiny import make_plan

from coreg_core.errors import Refused, StorageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.setting import Privacy
from coreg_wire.files.disk import Disk
from site_agent.consent.objections import Consent, Counts
from site_agent.consent.policy import Policy
from site_agent.consent.row_sets import row_set
from site_agent.ledger import Ledger, read_ledger


def opened(path, *pairs, disk=None, **keys):
    """These scores, given by an agent that is started for them."""
    ledger = Ledger(path, disk=disk)
    try:
        consent = Consent(Policy(**keys), ledger.memory, lambda: 0.0)
        consent.open_scores(make_plan(), "ids", np.array(pairs, dtype="<u8").reshape(-1, 2))
    finally:
        ledger.close()


def test_the_sixth_model_or_set_of_sites_is_refused_whatever_process_gave_the_others(tmp_path):
    path = tmp_path / "l"
    for k in range(5):
        for _ in range(2):  # a repeated one tells nothing new
            opened(path, (7, k), (8, k))
    with pytest.raises(Refused, match=r"scored by 5 models or sets of sites \(models_per_individual"):
        opened(path, (7, 5), (9, 5))
    opened(path, (9, 5), (9, 6))
    opened(path, (7, 5), models_per_individual=6)
    assert len(list(read_ledger(path))) == 7, "nothing of what was refused or known"
    ledger = Ledger(path)
    assert len(ledger.memory.scores()) == 13
    ledger.close()


def test_a_line_that_was_cut_is_not_counted_and_the_next_ones_stand_whole(tmp_path):
    path = tmp_path / "l"
    for k in (0, 1):
        opened(path, (7, k), models_per_individual=2)
    path.write_bytes(path.read_bytes()[:-3])
    opened(path, (7, 2), models_per_individual=2)
    ledger = Ledger(path)
    assert ledger.memory.scores().tolist() == [[7, 0], [7, 2]]
    ledger.close()


def test_a_site_opens_the_same_rows_as_often_as_its_policy_says_over_restarts(tmp_path):
    rows = row_set(b"secret", [b"p1", b"p2"], {0: 1.5}, [b"a", b""])
    for allowed in (True, True, False):
        ledger = Ledger(tmp_path / "l")
        consent = Consent(Policy(openings=2), ledger.memory, lambda: 0.0)
        plan, counts = replace(make_plan(), objective=Additive(), privacy=Privacy()), Counts(rows=rows, labelled=100)
        if allowed:
            consent.open_moments(plan, "ids", counts)
        else:
            with pytest.raises(Refused, match="opened 2 times, and openings = 2"):
                consent.open_moments(plan, "ids", counts)
        ledger.close()
    first, second = read_ledger(tmp_path / "l")
    assert ("rows" in first, second["again"]) == (True, rows.digest), "the rows are written once"


def test_no_score_is_given_without_its_line(tmp_path):
    class Full(Disk):
        def append_to(self, path):
            file = super().append_to(path)

            class Stuck:
                truncate, close = file.truncate, file.close

                def write(self, data):
                    raise OSError(28, "No space left on device")

            return Stuck()

    with pytest.raises(StorageError, match="No space left on device"):
        opened(tmp_path / "l", (7, 0), disk=Full())
