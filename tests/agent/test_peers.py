"""Peers: fingerprints in words, certificates beside pins, and keys that are one a run."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coreg_core.errors import UsageError
from coreg_sim.federation.simulate import fingerprint_of, identity_of
from coreg_wire.files.toml_file import read_toml
from coreg_wire.identity.keys import words
from coreg_wire.identity.names import site_uri
from site_agent.cli.app import app
from site_agent.consent.policy import read_policy
from site_agent.identity.peers import peer_of

FINGERPRINTS = st.text("0123456789abcdef", min_size=64, max_size=64)


def test_words_are_proquints() -> None:
    """The examples of the paper: 127.0.0.1 and 63.84.220.193."""
    assert words("7f000001" + "0" * 56).split("-")[:2] == ["lusab", "babad"]
    assert words("3f54dcc1" + "0" * 56).split("-")[:2] == ["gutih", "tugad"]


@given(FINGERPRINTS, FINGERPRINTS)
def test_other_first_halves_other_words(a: str, b: str) -> None:
    assert (words(a) == words(b)) == (a[:32] == b[:32])
    assert len(words(a).split("-")) == 8


def certificate(path, name, owner):
    """A certificate in that name, of that owner's key."""
    key, now = identity_of(owner), dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([site_uri(name)]), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), SHA256())
    )
    path.write_bytes(made.public_bytes(Encoding.PEM))
    return path


def test_the_command_pins_and_compares(tmp_path) -> None:
    (tmp_path / "identity").mkdir()
    own = certificate(tmp_path / "identity" / "site.pem", "a", "a")
    b, c = (certificate(tmp_path / f"{name}.pem", name, name) for name in "bc")
    told = CliRunner().invoke(app, ["peers", "--pin", "--identity", str(own.parent), str(b), str(c)])
    assert told.exit_code == 0, told.output
    policy = tmp_path / "policy.toml"
    policy.write_text(told.output)
    assert read_toml(policy) == {"peers": {name: fingerprint_of(name) for name in "abc"}}

    forged = certificate(tmp_path / "forged.pem", "b", "the coordinator")
    asked = ["peers", "--policy", str(policy), "--identity", str(own.parent), str(forged)]
    lines = CliRunner().invoke(app, asked).output.splitlines()
    assert lines[0] == "a (this site: you read these words): pinned"
    assert lines[1].strip() == words(fingerprint_of("a"))
    assert "b (its operator reads these words): ANOTHER KEY THAN THE ONE THAT IS PINNED" in lines
    assert "c (its operator reads these words): pinned" in lines
    with pytest.raises(UsageError, match="cannot be read"):
        peer_of(tmp_path / "none.pem", {})


def test_pins_are_written_into_a_policy_that_keeps_everything_else(tmp_path) -> None:
    (tmp_path / "identity").mkdir()
    own = certificate(tmp_path / "identity" / "site.pem", "a", "a")
    dotted = certificate(tmp_path / "b.pem", "b.clinic", "b")
    policy = tmp_path / "policy.toml"
    policy.write_text("# mine\nscoring = true  # agreed in May\n")

    def pin(*certificates):
        words = ["peers", "--pin", "--write", str(policy), "--identity", str(own.parent), *map(str, certificates)]
        return CliRunner().invoke(app, words)

    assert "pinned a, b.clinic" in pin(dotted).output
    assert policy.read_text().startswith("# mine\nscoring = true  # agreed in May\n")
    assert policy.stat().st_mode & 0o777 == 0o600
    once = policy.read_text()
    assert "pinned no new site" in pin(dotted).output, "typed twice"
    assert policy.read_text() == once
    pin(certificate(tmp_path / "c.pem", "c", "c"))
    assert read_policy(policy).peers == {
        "a": fingerprint_of("a"),
        "b.clinic": fingerprint_of("b"),
        "c": fingerprint_of("c"),
    }
    once = policy.read_text()
    done = pin(certificate(tmp_path / "forged.pem", "c", "the coordinator"))
    assert isinstance(done.exception, UsageError)
    assert "another key is pinned for c; nothing was changed" in str(done.exception)
    assert policy.read_text() == once
    policy.unlink()
    assert "no such file. Correct the name" in str(pin(dotted).exception), "a misspelt name is no new policy"
    assert not policy.exists()
