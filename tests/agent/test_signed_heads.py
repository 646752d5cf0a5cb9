"""The ledger against whoever can write the file: what both sides signed cannot be made anew, and what was cut off is missed."""

import dataclasses
import hashlib
import json

import pytest
from ledger_home import Home
from typer.testing import CliRunner

from coordinator.authority.notary import Notary
from coordinator.authority.pki import load_server, sign_request
from coordinator.authority.renewal import finish_authority, renew_authority
from coordinator.cli.format import head_line, went_back
from coordinator.driver import Lap
from coordinator.store.runs import RunStore
from coreg_core.errors import BadData, StorageError
from coreg_core.protocol.messages import Countersigned, Fetched, Head, Hello, Leaving
from coreg_core.protocol.plan import Membership, Plan
from coreg_wire.identity.checkpoints import said_by_coordinator, said_by_site
from coreg_wire.identity.names import fingerprint, load_certificates
from coreg_wire.identity.signatures import private_key, sign, to_hex
from site_agent.cli.app import app
from site_agent.identity.identity import enrol, install
from site_agent.ledger import GENESIS, HeadSigner, Ledger
from site_agent.ledger.audit import read_record


def test_what_both_signed_is_told_with_where_and_when(home):
    [first, second] = home.serve("one", "two")
    found = home.audit()
    assert [(s.run, s.head, s.receipt) for s in found.heads] == [
        (k.receipt.run, k.receipt.head, k.receipt) for k in (first, second)
    ]
    # Hello; then of each run an acceptance, three answers, what was fetched and its countersignature; Leaving.
    assert (first.receipt.head.lines, second.receipt.head.lines, found.lines) == (5, 11, 14)
    assert found.both == found.own == found.heads[1]
    assert found.after == {"Fetched": 1, "Countersigned": 1, "Leaving": 1}
    line = home.path.read_bytes().splitlines()[10]
    assert second.receipt.head.last == hashlib.sha256(line).hexdigest()
    home.serve()  # a process that comes for nothing: two more lines
    assert home.audit().after == {"Fetched": 1, "Countersigned": 1, "Leaving": 2, "Hello": 1}


def test_removing_every_answer_and_making_the_chain_anew_is_found(home):
    kept = home.serve("one", "two")
    home.rewrite([e for e in home.lines if e["kind"] != "Prediction"])
    with pytest.raises(
        StorageError, match=r"line 3: the head of run one was signed .* over 5 lines .* there are 2"
    ) as told:
        home.audit()
    assert told.value.exit_code == 8
    # Without the signatures nothing of the file shows it: that they are gone does, and the coordinator's record.
    home.rewrite([e for e in home.lines if e["kind"] not in ("Fetched", "Countersigned")])
    assert home.audit().both is None
    with pytest.raises(StorageError, match=r"signed a head over 11 lines .* here are 4: the end was cut off"):
        home.audit(home.record(kept))
    home.rewrite(
        [{k: v for k, v in e.items() if k != "signature"} for e in home.lines] + [{"at": "", "kind": "Fetched"}]
    )
    with pytest.raises(StorageError, match="1 runs were fetched by it and not one line is signed"):
        home.audit()


def test_one_number_of_one_answer_changed_is_found(home):
    home.serve("one", "two")
    entries = home.lines
    entries[8]["sha256"] = "0" * 64
    home.rewrite(entries)
    with pytest.raises(StorageError, match="line 12: the head of run two was signed"):
        home.audit()


def test_an_end_that_was_cut_off_is_missed_by_the_coordinators_record(home):
    kept = home.serve("one", "two")
    home.rewrite(home.lines[:8])
    assert home.audit().both.run == "one", "the file alone does not show it"
    with pytest.raises(StorageError, match=r"at the end of run two, .* and here are 8: the end was cut off"):
        home.audit(home.record(kept))
    assert home.audit(home.record(kept[:1])).compared == 1


def resigned(home, entries, site, name="north"):
    """The attacker's chain under heads of a key that he has."""
    identity = home.identity(site)
    private, certificate = (
        private_key(identity.key_pem),
        to_hex(load_certificates(identity.certificate_pem, "site.pem")[0]),
    )
    previous, made = GENESIS, []
    for entry in entries:
        if entry["kind"] == "Fetched":
            head = Head(len(made), previous, entry["head"]["at"])
            signature = sign(private, said_by_site(name, entry["run"], head))
            entry = {**entry, "head": dataclasses.asdict(head), "signature": signature, "certificate": certificate}
        made.append(entry)
        previous = hashlib.sha256(json.dumps({**entry, "previous": previous}, sort_keys=True).encode()).hexdigest()
    home.rewrite(made)


def test_heads_of_another_key_are_not_this_sites(home):
    kept = home.serve("one")
    entries = [e for e in home.lines if e["kind"] not in ("Prediction", "Countersigned")]
    resigned(home, entries, "stranger")
    with pytest.raises(StorageError, match=r"not signed by north: .* not of this federation's authority"):
        home.audit()
    resigned(home, entries, "south")
    with pytest.raises(StorageError, match=r"not signed by north: .* is of 'south', not of 'north'"):
        home.audit()
    # Its own operator has the key. What was countersigned is what he signed before, and the coordinator has it.
    resigned(home, entries, "north")
    assert home.audit().both is None
    with pytest.raises(StorageError, match="the end was cut off"):
        home.audit(home.record(kept))
    longer = [*entries[:-1], *(e for e in entries if e["kind"] == "PlanAccepted" for _ in range(5)), *entries[-1:]]
    resigned(home, longer, "north")
    with pytest.raises(StorageError, match="is not line 5 here: the ledger was replaced"):
        home.audit(home.record(kept))


@pytest.mark.parametrize("who", ["south", "stranger"])
def test_nobody_but_the_coordinator_countersigns(home, who):
    home.serve("one", countersign=False)
    identity = home.identity(who)
    head = home.audit().own
    certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
    receipt = Countersigned("one", head.head, "2026-11-21T20:00:00.000+00:00", "", certificate)
    signature = sign(private_key(identity.key_pem), said_by_coordinator("north", head.signature, receipt))
    entry = {
        "at": "", "kind": "Countersigned", "run": "one", "head": dataclasses.asdict(head.head),
        "countersigned": receipt.at, "signature": signature, "certificate": certificate,
    }  # fmt: skip
    home.rewrite([*home.lines, entry])
    why = "not a coordinator's" if who == "south" else "not of this federation's authority"
    with pytest.raises(StorageError, match=rf"countersignature for run one is not the coordinator's: .* {why}"):
        home.audit()


def test_a_countersignature_of_something_else_is_not_kept(home):
    identity = home.identity()
    ledger = Ledger(home.path, HeadSigner(identity))
    signed = home.one(ledger, identity, "one", countersign=False).receipt
    for wrong, why in (
        (dataclasses.replace(signed, run="two"), "for which none was awaited"),
        (dataclasses.replace(signed, head=Head(1, signed.head.last, signed.head.at)), "it is of another head"),
    ):
        assert why in ledger.countersigned(wrong)
    home.one(ledger, identity, "two", countersign=False)
    later = ledger._signed["two"]
    receipt = home.notary.attest("north", identity.certificate_pem, later).receipt
    assert "not of that certificate's key" in ledger.countersigned(dataclasses.replace(receipt, at="2020"))
    refused = home.notary.attest("north", home.identity("south").certificate_pem, home_fetched(ledger, "three")).receipt
    assert (refused.signature, "not signed by the key" in refused.reason) == ("", True)
    assert "did not countersign" in ledger.countersigned(refused)
    ledger.close()
    assert home.audit().both is None
    assert [s.run for s in home.audit().heads] == ["one", "two", "three"]


def home_fetched(ledger, run):
    return ledger.record(Fetched(run))


def test_killed_before_the_countersignature_came_the_record_has_it_and_the_next_head_covers_it(home):
    kept = home.serve("one", countersign=False)
    found = home.audit()
    assert (found.both, found.own.run) == (None, "one")
    found = home.audit(home.record(kept))
    assert (found.both.run, found.compared) == ("one", 1)
    home.serve("two")
    found = home.audit()
    assert (found.both.run, found.both.head.lines > found.heads[0].head.lines) == ("two", True)


def test_a_renewed_certificate_and_a_new_key_leave_earlier_heads_good(home):
    first = home.identity().certificate_pem
    home.serve("one")
    request = home.folder / "north" / "site.csr"
    install(home.folder / "north", sign_request(home.folder / "ca", request).certificate_path)
    assert home.identity().certificate_pem != first
    home.serve("two")
    (home.folder / "north" / "site.key").unlink()
    enrol(home.folder / "north", "north")
    install(home.folder / "north", sign_request(home.folder / "ca", request).certificate_path)
    home.serve("three")
    found = home.audit()
    assert [s.receipt is not None for s in found.heads] == [True, True, True]
    assert len({s.certificate for s in found.heads}) == 3


def test_a_line_torn_by_a_full_disk_is_passed_between_two_heads(home):
    home.serve("one")
    home.path.write_bytes(home.path.read_bytes() + b'{"at": "2026-11-2')
    home.serve("two")
    found = home.audit()
    assert (found.torn, found.both.run) == ((9,), "two")
    lines = home.path.read_bytes().splitlines(keepends=True)
    home.path.write_bytes(b"".join([*lines[:8], *lines[9:]]))
    with pytest.raises(StorageError, match="the chain is broken"):
        home.audit()


def test_a_disk_that_takes_half_a_line_stops_the_message(home):
    """What fits is written without an error; the line that is left is one that was torn."""
    ledger = Ledger(home.path)
    ledger.record(Hello("north", 2, "0.2.0"))

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            return self.file.write(data[:20])

        def __getattr__(self, name):
            return getattr(self.file, name)

    ledger._file = Full(ledger._file)
    with pytest.raises(StorageError, match="nothing was sent"):
        ledger.record(Leaving("over"))
    ledger.close()
    home.serve("one")
    assert home.audit().torn == (2,)


def test_the_command_says_it_in_words_and_in_json_and_ends_with_8_where_it_does_not_fit(home):
    kept = home.serve("one", "two")
    home.record(kept)
    command = ["ledger", str(home.path), "--verify", "--heads", str(home.folder / "heads.json")]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert "14 lines in 1 file, the chain is whole" in said.output
    assert "countersigned by the coordinator up to line 11, 20" in said.output
    assert "not yet signed: the last 3 lines (1 Countersigned, 1 Fetched, 1 Leaving)" in said.output
    assert "2 heads of the coordinator's record fit" in said.output
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert (told["both"]["run"], told["both"]["head"]["lines"], told["compared"]) == ("two", 11, 2)
    (home.folder / "said.json").write_text(json.dumps(told))
    assert len(read_record(home.folder / "said.json", "north")) == 2, "what it said once can be held to it later"
    home.rewrite([e for e in home.lines if e["kind"] != "Prediction"])
    failed = CliRunner().invoke(app, command)
    assert isinstance(failed.exception, StorageError)
    plain = CliRunner().invoke(app, ["ledger", str(home.path)])
    assert (plain.exit_code, "BEGIN" in plain.output) == (0, False)


def test_a_record_that_holds_no_head_of_the_site_is_no_evidence(home):
    kept = home.serve("one")
    path = home.folder / "heads.json"
    for text in ("", "{}", "[]", "not JSON", '{"heads": [3]}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(BadData):
            read_record(path, "north")
    forged = dataclasses.replace(kept[0], signature="00")
    with pytest.raises(BadData, match="none that north signed"):
        home.audit(home.record([forged]))
    receipt = dataclasses.replace(kept[0].receipt, at="2020-01-01T00:00:00.000+00:00")
    with pytest.raises(BadData, match="none that the coordinator signed"):
        home.audit(home.record([dataclasses.replace(kept[0], receipt=receipt)]))


def test_the_store_keeps_heads_sealed_and_tells_them(home, tmp_path):
    kept = home.serve("r-one", "r-two")
    store = RunStore(tmp_path / "runs.sqlite")
    for signed in kept:
        store.begin(Plan(signed.receipt.run, "clinics", Membership(("north", "south"), 2)), "2026-01-01")
        store.write(signed.receipt.run, signed, None, Lap(), "2026-01-01")
    assert store.records("r-one") == [], "nothing is decided by it"
    told = store.heads(site="north")
    assert told == json.loads(json.dumps([dataclasses.asdict(signed) for signed in kept]))
    assert store.heads(run="r-two") == told[1:]
    assert store.heads(site="south") == []
    assert head_line(told[0]).startswith("ledger of north: 5 lines up to ")
    store._db.execute("update heads set head = replace(head, '\"lines\": 5', '\"lines\": 6')")
    with pytest.raises(StorageError, match="checksum"):
        store.heads()
    store.close()


def test_a_ledger_that_was_restored_from_a_backup_is_told_by_the_coordinators_record(home):
    kept = home.serve("one")
    backup = home.path.read_bytes()
    kept += home.serve("two")
    assert list(went_back([dataclasses.asdict(signed) for signed in kept])) == []
    home.path.write_bytes(b"".join(backup.splitlines(keepends=True)[:2]))
    kept += home.serve("four")
    [warning] = went_back([dataclasses.asdict(signed) for signed in kept])
    assert warning.startswith("north: its ledger had 13 lines at the end of run two, and 7 at that of four")


def test_heads_outlive_the_authority_that_signed_for_them(tmp_path):
    home = Home(tmp_path)
    [kept] = home.serve("one")
    for lost in (False, True):
        renew_authority(home.folder / "ca", lost=lost)
        signed = sign_request(home.folder / "ca", home.folder / "north" / "site.csr")
        sign_request(home.folder / "ca", home.folder / "south" / "site.csr")
        finish_authority(home.folder / "ca")
        mark = load_certificates((home.folder / "ca" / "ca.pem").read_bytes(), "ca.pem")[0]
        install(home.folder / "north", signed.certificate_path, authority=fingerprint(mark))
        home.notary = Notary(load_server(home.folder / "ca"))
        home.serve(f"lost {lost}")
    said = CliRunner().invoke(app, ["ledger", str(home.path), "--verify", "--json"])
    assert said.exit_code == 0, said.exception
    assert [head["receipt"] is not None for head in json.loads(said.output)["heads"]] == [True, True, True]
    assert (home.folder / "north" / "earlier-ca.pem").exists()
    home.record([kept])
    only = ["--authority", str(home.folder / "north" / "ca.pem")]
    failed = CliRunner().invoke(app, ["ledger", str(home.path), "--verify", *only])
    assert "not of this federation's authority" in str(failed.exception)


def test_a_broken_chain_is_one_fault_with_one_code_however_it_is_read(home):
    home.serve("one")
    lines = home.path.read_bytes().splitlines(keepends=True)
    home.path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    for options in ([], ["--verify"]):
        failed = CliRunner().invoke(app, ["ledger", str(home.path), *options]).exception
        assert str(failed) == f"{home.path}, line 3: the chain is broken; a line was changed, removed or put in."
        assert failed.exit_code == 8
