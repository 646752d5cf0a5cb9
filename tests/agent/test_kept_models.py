"""Model files of earlier releases: they predict what they predicted, or name what is missing."""

import json

import pytest
import safetensors.numpy
from kept_models import KEPT
from numpy.testing import assert_allclose
from safetensors import safe_open

from coreg_core.errors import BadData
from site_agent.data.tables import read_table
from site_agent.models.file import FORMAT, load_model

FILES = sorted(KEPT.glob("*/*.coreg"))


def with_format(path, name, folder):
    """The file with another format in its header."""
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() | {"format": name}
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    changed = folder / "m.coreg"
    changed.write_bytes(safetensors.numpy.save(arrays, metadata=header))
    return changed


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_a_kept_model_predicts_what_it_predicted(path):
    expected = json.loads((path.parent / "predictions.json").read_text())[path.stem]

    predicted = load_model(path).predict(read_table(path.parent / "rows.csv"))

    assert_allclose(predicted, expected, rtol=1e-9)


def test_there_are_files_of_each_kind():
    assert {path.stem for path in FILES} == {"joined", "local", "agreement", "yes-no"}


def test_a_file_of_a_newer_release_names_the_upgrade(tmp_path):
    newer = with_format(FILES[0], f"coreg-model/{FORMAT + 1}", tmp_path)
    with pytest.raises(BadData, match=rf"format {FORMAT + 1}.* Upgrade: pip install --upgrade"):
        load_model(newer)


@pytest.mark.parametrize("name", ["coreg-model/3", "another/12", ""])
def test_a_file_of_another_program_or_before_0_4_is_trained_again(name, tmp_path):
    with pytest.raises(BadData, match="Train the model again"):
        load_model(with_format(FILES[0], name, tmp_path))
