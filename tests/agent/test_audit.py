"""The ledger against an attacker who can write the file: what both sides signed cannot be made anew, and a cut is missed."""

import dataclasses
import hashlib
import json

import pytest
from agent_files import agent
from typer.testing import CliRunner

from coordinator.authority.pki import sign_request
from coordinator.cli.app import app as coordinator_app
from coordinator.driver import Timing
from coordinator.machine.records import Begun
from coordinator.store.summaries import Summaries
from coreg_core.errors import BadData, StorageError
from coreg_core.objectives.setting import Membership
from coreg_core.protocol.messages import Countersigned, Fetched, LedgerHead
from coreg_core.protocol.plan import Plan
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import private_key, said_by_coordinator, said_by_site, sign, to_hex
from site_agent.identity.identity import enrol, install
from site_agent.ledger import GENESIS, HeadSigner, Ledger
from site_agent.ledger.audit import read_record


def test_signed_heads_are_found_with_where_and_when(home):
    [first, second] = home.serve("one", "two")
    found = home.audit()
    assert [(s.run, s.head, s.receipt) for s in found.heads] == [
        (k.receipt.run, k.receipt.head, k.receipt) for k in (first, second)
    ]
    # Hello; then of each run an offer, three answers, what was fetched and its countersignature; Leaving.
    assert (first.receipt.head.lines, second.receipt.head.lines, found.lines) == (5, 11, 14)
    assert found.both == found.own == found.heads[1]
    assert found.after == {"Fetched": 1, "Countersigned": 1, "Leaving": 1}
    line = home.path.read_bytes().splitlines()[10]
    assert second.receipt.head.last == hashlib.sha256(line).hexdigest()
    home.serve()  # a process that comes for nothing: two more lines
    assert home.audit().after == {"Fetched": 1, "Countersigned": 1, "Leaving": 2, "Hello": 1}


def test_removing_every_answer_and_making_the_chain_anew_is_found(home):
    kept = home.serve("one", "two")
    home.rewrite([e for e in home.lines if e["kind"] != "Answer"])
    with pytest.raises(
        StorageError, match=r"line 3: the head of run one, signed at .*, covers 5 lines .* but 2 lines"
    ) as told:
        home.audit()
    assert told.value.exit_code == 8
    # Without the signatures nothing of the file shows it: that they are gone does, and the coordinator's record.
    home.rewrite([e for e in home.lines if e["kind"] not in ("Fetched", "Countersigned")])
    assert home.audit().both is None
    with pytest.raises(
        StorageError, match=r"signed a head over 11 lines .* this ledger has 4: its last lines were removed"
    ):
        home.audit(home.record(kept))
    home.rewrite(
        [{k: v for k, v in e.items() if k != "signature"} for e in home.lines] + [{"at": "", "kind": "Fetched"}]
    )
    with pytest.raises(StorageError, match="it records 1 results and no signature"):
        home.audit()


def test_a_cut_end_is_missed_by_the_coordinators_record(home):
    kept = home.serve("one", "two")
    home.rewrite(home.lines[:8])
    assert home.audit().both.run == "one", "the file alone does not show it"
    with pytest.raises(
        StorageError, match=r"at the end of run two, .* but this ledger has 8: its last lines were removed"
    ):
        home.audit(home.record(kept))
    assert home.audit(home.record(kept[:1])).compared == 1


def resigned(home, entries, site, name="north"):
    """The attacker's chain under heads of a key that he has."""
    identity = home.identity(site)
    private = private_key(identity.key_pem)
    certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
    previous, made = GENESIS, []
    for entry in entries:
        if entry["kind"] == "Fetched":
            head = LedgerHead(len(made), previous, entry["head"]["at"])
            signature = sign(private, said_by_site(name, entry["run"], head))
            entry = {**entry, "head": dataclasses.asdict(head), "signature": signature, "certificate": certificate}
        made.append(entry)
        previous = hashlib.sha256(json.dumps({**entry, "previous": previous}, sort_keys=True).encode()).hexdigest()
    home.rewrite(made)


def test_heads_of_another_key_are_not_this_sites(home):
    kept = home.serve("one")
    entries = [e for e in home.lines if e["kind"] not in ("Answer", "Countersigned")]
    resigned(home, entries, "stranger")
    with pytest.raises(StorageError, match=r"not signed by north: .* not of this federation's authority"):
        home.audit()
    resigned(home, entries, "south")
    with pytest.raises(StorageError, match=r"not signed by north: .* is of 'south', not of 'north'"):
        home.audit()
    # Its own operator has the key. What was countersigned is what he signed before, and the coordinator has it.
    resigned(home, entries, "north")
    assert home.audit().both is None
    with pytest.raises(StorageError, match="its last lines were removed"):
        home.audit(home.record(kept))
    longer = [*entries[:-1], *(e for e in entries if e["kind"] == "Offer" for _ in range(5)), *entries[-1:]]
    resigned(home, longer, "north")
    with pytest.raises(StorageError, match="line 5 of this ledger is a different one: the ledger was replaced"):
        home.audit(home.record(kept))


@pytest.mark.parametrize("who", ["south", "stranger"])
def test_only_the_coordinator_countersigns(home, who):
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
        (dataclasses.replace(signed, run="two"), "without a signed head"),
        (dataclasses.replace(signed, head=LedgerHead(1, signed.head.last, signed.head.at)), "it is for another head"),
    ):
        assert why in ledger.countersigned(wrong)
    home.one(ledger, identity, "two", countersign=False)
    later = ledger._signed["two"]
    receipt = home.notary.countersign("north", identity.certificate_pem, later).receipt
    assert "does not match that certificate's key" in ledger.countersigned(dataclasses.replace(receipt, at="2020"))
    other = home.identity("south").certificate_pem
    refused = home.notary.countersign("north", other, ledger.record(Fetched("three"))).receipt
    assert (refused.signature, "not signed by the key" in refused.reason) == ("", True)
    assert "did not countersign" in ledger.countersigned(refused)
    ledger.close()
    assert home.audit().both is None
    assert [s.run for s in home.audit().heads] == ["one", "two", "three"]


def test_a_countersignature_that_did_not_arrive_is_in_the_record_and_the_next_head_covers_its_lines(home):
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


CHECKPOINTS = "checkpoints.json"


def test_the_command_verifies_in_words_and_in_json_and_refuses_a_changed_ledger(home):
    home.record(home.serve("one", "two"))
    command = ("ledger", home.path, "--verify", "--checkpoints", home.folder / CHECKPOINTS)
    shown = agent(*command)
    for words in (
        "14 lines, the chain is whole",
        "countersigned by the coordinator up to line 11, 20",
        "not yet signed: the last 3 lines (1 Countersigned, 1 Fetched, 1 Leaving)",
        "2 checkpoints of the coordinator's record fit",
    ):
        assert words in shown.output
    found = json.loads(agent(*command, "--json").output)
    assert (found["both"]["run"], found["both"]["head"]["lines"], found["compared"]) == ("two", 11, 2)
    home.rewrite([e for e in home.lines if e["kind"] != "Answer"])
    with pytest.raises(StorageError):
        agent(*command)
    plain = agent("ledger", home.path)
    assert (plain.exit_code, "BEGIN" in plain.output) == (0, False)
    lines = home.path.read_bytes().splitlines(keepends=True)
    home.path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    for words in (command[:2], command):  # one fault with one code, however it is read
        with pytest.raises(StorageError) as broken:
            agent(*words)
        told = "the chain is broken: this line or the one before was changed, removed or inserted. Keep the file as evidence"
        assert str(broken.value).startswith(f"{home.path}, line 3: {told}")
        assert broken.value.exit_code == 8


def test_a_record_without_a_head_of_the_site_is_no_evidence(home):
    [kept] = home.serve("one")
    path = home.folder / CHECKPOINTS
    for text in ("", "{}", "[]", "not JSON", '{"heads": [3]}', '{"checkpoints": 3}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(BadData):
            read_record(path, "north")
    with pytest.raises(BadData, match="north did not sign"):
        home.audit(home.record([dataclasses.replace(kept, signature="00")]))
    receipt = dataclasses.replace(kept.receipt, at="2020-01-01T00:00:00.000+00:00")
    with pytest.raises(BadData, match="the coordinator did not sign"):
        home.audit(home.record([dataclasses.replace(kept, receipt=receipt)]))


def test_the_coordinator_keeps_checkpoints_and_names_a_ledger_that_went_back(home, tmp_path):
    kept, backup = home.serve("r-one"), home.path.read_bytes()
    kept += home.serve("r-two")
    path = tmp_path / "runs.sqlite"
    store = Summaries(path)

    def write(signed):
        run = signed.receipt.run
        store.begin(Plan(run, "clinics", Membership(("north", "south"), 2)), "2026-01-01")
        store.write(run, signed, Timing(), "2026-01-01")

    def command(*words):
        return CliRunner().invoke(coordinator_app, [*words, "--store", str(path)], catch_exceptions=False)

    for signed in kept:
        write(signed)
    assert store.begun("r-one") == Begun(), "nothing is decided by it"
    assert store.checkpoints(site="north") == kept
    assert store.checkpoints(run="r-two") == kept[1:]
    assert store.checkpoints(site="south") == []
    shown = command("ledger-checkpoints", "--site", "north")
    assert shown.stdout.startswith("ledger of north: 5 lines up to ")
    assert shown.stderr == ""
    (tmp_path / CHECKPOINTS).write_text(command("ledger-checkpoints", "--run", "r-t", "--json").stdout)
    assert [signed.run for signed in read_record(tmp_path / CHECKPOINTS, "north")] == ["r-two"]
    home.path.write_bytes(b"".join(backup.splitlines(keepends=True)[:2]))  # a restored backup
    write(home.serve("r-four")[0])
    warning = command("ledger-checkpoints").stderr
    assert warning.startswith("north: its ledger had 13 lines at the end of run r-two, and 7 at that of r-four")
    store.close()
