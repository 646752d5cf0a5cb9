"""The record of scored individuals: it outlasts the process, and an answer waits for it."""

import numpy as np
import pytest

from coreg_core.errors import Refused, StorageError
from coreg_wire.files.disk import Disk
from site_agent.ledger import Ledger
from site_agent.ledger.scored import ScoredFile
from site_agent.policy.guards import rules_of
from site_agent.policy.policy import Policy


def opened(folder, *pairs, **keys):
    """These scores, given by an agent that is started for them."""
    ledger = Ledger(folder / "l")
    try:
        rules_of(Policy(**keys), ledger).score_rules.open(np.array(pairs, dtype="<u8").reshape(-1, 2))
    finally:
        ledger.close()


def test_the_sixth_model_or_set_of_sites_is_refused_whatever_process_gave_the_others(tmp_path):
    for k in range(5):
        for _ in range(2):  # a repeated one tells nothing new
            opened(tmp_path, (7, k), (8, k))
    with pytest.raises(Refused, match=r"scored by 5 models or sets of sites \(models_per_individual"):
        opened(tmp_path, (7, 5), (9, 5))
    opened(tmp_path, (9, 5), (9, 6))
    opened(tmp_path, (7, 5), models_per_individual=6)
    path = tmp_path / "l.scored"
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (16 * 13, 0o600), "nothing of what was refused"


def test_a_record_that_was_cut_is_not_counted_and_the_next_ones_stand_whole(tmp_path):
    opened(tmp_path, (7, 0), (7, 1), models_per_individual=2)
    path = tmp_path / "l.scored"
    path.write_bytes(path.read_bytes()[:-3])
    opened(tmp_path, (7, 2), models_per_individual=2)
    assert ScoredFile(path).pairs().tolist() == [[7, 0], [7, 2]]


def test_no_score_is_given_without_its_record(tmp_path):
    class Full(Disk):
        def write_whole(self, path, data):
            raise OSError(28, "No space left on device")

    one = np.array([[7, 0]], dtype="<u8")
    with pytest.raises(StorageError, match=r"No space left on device.*no answer was sent"):
        ScoredFile(tmp_path / "s", Full()).add(one)
    (tmp_path / "s").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        ScoredFile(tmp_path / "s").pairs()
