"""What a command writes for its user replaces nothing but its own earlier output."""

import pytest

from coreg_core.errors import StorageError, UsageError
from coreg_wire.files.output import ONNX, PICTURES, check_output, write_output

SVG = b"<?xml version='1.0'?><svg/>"


def test_an_output_is_private_and_replaces_an_earlier_one(tmp_path):
    path = tmp_path / "r.svg"
    write_output(path, SVG, "--plot", PICTURES)
    assert path.stat().st_mode & 0o777 == 0o600
    write_output(path, SVG + b" ", "--plot", PICTURES)
    assert path.read_bytes() == SVG + b" "


@pytest.mark.parametrize(
    "content",
    [
        b"-----BEGIN PRIVATE KEY-----\n",
        b'{"number": 1, "previous": "00"}\n',
        b"id,a,y\n1,2,3\n",
        b"SQLite format 3\0",
        b"\x40\0\0\0\0\0\0\0{}",
    ],
    ids=["key", "ledger", "table", "store", "model"],
)
@pytest.mark.parametrize(("name", "kinds"), [("r.svg", PICTURES), ("m.onnx", ONNX)])
def test_another_kind_of_file_is_not_overwritten(tmp_path, content, name, kinds):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"is no earlier output .* not overwritten"):
        write_output(path, SVG, "--plot", kinds)
    assert path.read_bytes() == content


def test_a_link_a_folder_and_another_suffix_are_refused(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"{}\n")
    (tmp_path / "r.svg").symlink_to(ledger)
    (tmp_path / "f.svg").mkdir()
    for name, words in (("r.svg", "is a link to"), ("f.svg", "no earlier"), ("r.txt", "or .pdf")):
        with pytest.raises(UsageError, match=words):
            write_output(tmp_path / name, SVG, "--plot", PICTURES)
    with pytest.raises(StorageError, match="no such folder"):
        check_output(tmp_path / "none" / "r.svg", "--plot", PICTURES)
    assert ledger.read_bytes() == b"{}\n"
    assert not [*(tmp_path / "f.svg").iterdir()]
