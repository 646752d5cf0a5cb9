"""The ledger: what it says of every message, which changes are found, and signatures against an
attacker who can write it.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
from dataclasses import replace
from typing import get_args

import pytest
from agent_files import agent
from hypothesis import given
from hypothesis import strategies as st
from ledger_home import answer, chained, offer, told
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coordinator.machine.records import Begun, Timing
from coordinator.store.runs import RunStore
from coreg_core.errors import BadData, StorageError
from coreg_core.messages import (
    Answer,
    Approval,
    Countersigned,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    LedgerHead,
    PlanRefused,
    Report,
    Unaligned,
    Wanted,
)
from coreg_core.plan import Plan
from coreg_core.terms import Membership
from coreg_wire.files.disk import AppendFile, is_held
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import (
    private_key,
    said_by_coordinator,
    said_by_site,
    sign,
    to_hex,
)
from site_agent.consent.memory import Memory
from site_agent.identity.enrolment import enrol, install
from site_agent.ledger import GENESIS, HeadSigner, Ledger, read_ledger
from site_agent.ledger.audit import read_record
from site_agent.ledger.ledger import remember
from tests.issued import issued

PLAN = Plan("r", "clinics", Membership(("a", "b", "c"), 3))
PROOF = replace(answer(step=1, words=None), report=Report(round=3, verified=True, gap=(1e-5,)))
EVERYTHING = (
    Hello("north", 3, "0.2.0"),
    PlanRefused("r", "too many rounds"),
    offer("r", PLAN.digest, "digest of the ids"),
    PROOF,
    answer(step=2, words=range(6)),
    Fault("r", 0, 3, "another target under an old number"),
    Fetched("r"),
    Approval("r", True),
    Unaligned("r"),
    Wanted("now"),
    Leaving("over"),
)


def write(path, messages=EVERYTHING, **options):
    ledger = Ledger(path, **options)
    try:
        for message in messages:
            has_words = isinstance(message, Answer) and message.summed is not None
            disclosure = None
            if has_words:
                disclosure = told(rows=6)
            ledger.record(message, disclosure)
    finally:
        ledger.close()
    return ledger


def opened(path):
    """What a starting agent learns from its ledger."""
    ledger = Ledger(path)
    try:
        memory = ledger.memory
        answered = memory.answered(PLAN, "digest of the ids"), memory.rows_of(PLAN.run)
        return answered, memory.summed_with("digest of the ids")
    finally:
        ledger.close()


# --- what it says ---------------------------------------------------------------------------------


def test_every_kind_of_message_has_a_line_with_what_it_disclosed(tmp_path):
    assert {type(message) for message in EVERYTHING} == set(get_args(FromSite))
    sent = write(tmp_path / "l").sent
    lines = list(read_ledger(tmp_path / "l"))
    assert [e["kind"] for e in lines] == [type(each).__name__ for each in EVERYTHING]
    assert lines[0]["previous"] == GENESIS
    assert lines[0]["protocol"] == 3
    assert lines[0]["release"] == "0.2.0"
    assert lines[2]["n_unlabelled"] == 3
    assert lines[2]["ids_digest"] == "digest of the ids"
    assert lines[2]["data_digest"] == "data"
    report = {key: value for key, value in lines[3]["report"].items() if value}
    assert report == {"round": 3, "verified": True, "gap": [1e-05]}
    for entry, message in zip(lines, EVERYTHING, strict=True):
        if isinstance(message, PlanRefused | Fault | Leaving):
            assert entry["text"] == message.reason  # a refusal's words left the machine as well
    assert {kind: s.messages for kind, s in sent.items()} == {
        type(each).__name__: 1 for each in EVERYTHING
    } | {"Answer": 2}
    assert sum(s.numbers for s in sent.values()) == 6
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("sealed", [True, False])
def test_an_answer_has_what_it_tells_and_no_number_that_left(tmp_path, sealed):
    """It can be shown to an auditor: it has the digest of what left, and not that."""
    ledger = Ledger(tmp_path / "l")
    message = answer(step=3, words=(123456789, 987654321, 5))
    ledger.record(message, told(sealed=sealed, may_change=True))
    ledger.close()
    [line] = read_ledger(tmp_path / "l")
    text = (tmp_path / "l").read_text()
    expected = {
        "run": "r", "attempt": 0, "step": 3, "numbers": 3, "sha256": message.summed.digest,
        "sent": "sealed" if sealed else "in clear", "question": "respond affine",
        "labels": "in the vectors",
        "what": "this site's own predictions for the shared instances",
        "participants": ["a", "b"] * sealed, "may_change": True,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert not any(number in text for number in ("123456789", "987654321"))


# --- changes --------------------------------------------------------------------------------------


@given(data=st.data())
def test_one_byte_changed_anywhere_before_the_last_line_is_found_when_the_agent_starts(
    tmp_path_factory, data
):
    path = tmp_path_factory.mktemp("ledger") / "l"
    write(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, whole[:-1].rindex(b"\n")))
    path.write_bytes(
        whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    )
    for read in (Ledger, lambda path: list(read_ledger(path))):
        with pytest.raises(StorageError, match=r"l, line \d+: "):
            read(path)


NO_ENTRIES = (
    b"",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b"[" * 100_000,
    json.dumps({"previous": GENESIS}).encode(),
)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(lambda lines: [*lines[:2], *lines[3:]], 3, id="a line removed"),
        pytest.param(lambda lines: lines[1:], 1, id="the first line removed"),
        pytest.param(
            lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, id="two lines swapped"
        ),
        *((lambda lines, no=no: [no + b"\n", *lines[1:]], 1) for no in NO_ENTRIES),
    ],
)
def test_an_agent_refuses_to_start_with_a_changed_ledger_and_names_the_line(tmp_path, change, line):
    write(tmp_path / "l")
    (tmp_path / "l").write_bytes(
        b"".join(change((tmp_path / "l").read_bytes().splitlines(keepends=True)))
    )
    for read in (Ledger, lambda path: list(read_ledger(path))):
        with pytest.raises(StorageError, match=f"line {line}: the chain is broken"):
            read(tmp_path / "l")


def test_entries_of_the_wrong_type_are_refused_when_the_agent_starts(tmp_path):
    write(tmp_path / "l")
    for changed in ({"participants": [[]]}, {"participants": 7}):
        entries = list(read_ledger(tmp_path / "l"))
        [e for e in entries if e["kind"] == "Answer"][-1].update(changed)
        (tmp_path / "changed").write_bytes(chained(entries))
        with pytest.raises(StorageError, match=r"not an entry of this release.*backup"):
            opened(tmp_path / "changed")


def test_a_last_line_cut_at_any_byte_is_removed_at_the_next_start(tmp_path):
    path = tmp_path / "l"
    write(path, EVERYTHING[:2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        assert len(list(read_ledger(path))) == 1, "a reader leaves it"
        assert write(path, []).torn == cut - first
        assert path.read_bytes() == whole[:first]
        assert write(path, [Leaving("later")]).torn == 0
        assert [e.get("text") for e in read_ledger(path)] == [None, "later"]


# --- files ----------------------------------------------------------------------------------------


def test_two_agents_never_write_one_chain(tmp_path):
    path = tmp_path / "l"
    first = Ledger(path)
    assert first.new
    with pytest.raises(StorageError, match="another agent of this site is running"):
        Ledger(path)
    assert is_held(path)
    first.record(Leaving("over"))
    first.close()
    assert not is_held(path)
    write(path, [Leaving("again")])
    assert len(list(read_ledger(path))) == 2


@pytest.mark.parametrize(
    "room", [20, 10_000], ids=["a part of the line", "a line that is not synced"]
)
def test_after_a_failed_write_no_other_line_follows_in_this_process(tmp_path, monkeypatch, room):
    """Another run's answer would stand behind a line of unknown length: the chain would be broken
    for ever.
    """
    ledger = Ledger(tmp_path / "l")
    ledger.record(Leaving("before"))
    write_all = AppendFile.write

    def write(file, data):
        write_all(file, data[:room])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AppendFile, "write", write)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"No space left on device.*nothing was sent"):
            ledger.record(Leaving("one run"))
        monkeypatch.undo()  # there is room again
    ledger.close()
    with contextlib.closing(Ledger(tmp_path / "l")) as again:
        again.record(Leaving("later"))
    kinds = [entry["kind"] for entry in read_ledger(tmp_path / "l")]
    assert kinds == ["Leaving", "Leaving"] + ["Leaving"] * (room != 20)


def test_an_entry_is_on_the_disk_when_it_is_recorded(tmp_path, monkeypatch):
    """Not in the system's memory alone: a power cut can come after the message left."""
    path = tmp_path / "l"
    synced = []
    ledger = Ledger(path)
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(path.read_bytes().count(b"\n"))
    )
    for count, message in enumerate(EVERYTHING, start=1):
        disclosure = None
        if count == 5:
            disclosure = told()
        ledger.record(message, disclosure)
        assert synced == list(range(1, count + 1))

    def fails(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    sent = dict(ledger.sent)
    with pytest.raises(StorageError, match="nothing was sent"):
        ledger.record(Leaving("over"))
    assert ledger.sent == sent
    ledger.close()
    memory = Memory()
    remember(path, memory)
    assert len(memory.summed_with("digest of the ids")) == 1


def test_an_older_copy_and_another_ledger_are_found_by_the_last_countersigned_head(tmp_path, home):
    path = tmp_path / "l"
    signer = HeadSigner(home.identity())
    write(path, [Leaving("1"), Leaving("2"), Leaving("3")])
    whole = path.read_bytes().splitlines(keepends=True)
    head = LedgerHead(
        2, hashlib.sha256(whole[1].rstrip(b"\n")).hexdigest(), "2026-01-01T00:00:00.000+00:00"
    )

    def sent(**changes):
        """What the coordinator sends of a head that this site has signed."""
        shown = replace(head, **changes)
        signature = signer.sign("r", shown)
        return Countersigned("r", shown, "", "", "", site_signature=signature)

    ledger = Ledger(path, signer)
    assert ledger.compare(sent())
    assert ledger.compare(sent(lines=0, last=""))
    invented = replace(sent(), head=replace(head, lines=2**40))
    assert not ledger.compare(invented), "it ended the agent, which needed no signature"
    assert not ledger.compare(replace(sent(), site_signature=""))
    with pytest.raises(StorageError, match=r"it has 3 lines, and the coordinator countersigned 4"):
        ledger.compare(sent(lines=4))
    with pytest.raises(
        StorageError, match=r"its line 2 is not the one that the coordinator countersigned"
    ):
        ledger.compare(sent(last="0" * 64))
    ledger.close()
    path.write_bytes(whole[0])  # restored, and grown again
    write(path, [Leaving("other"), Leaving("3")])
    ledger = Ledger(path, signer)
    with pytest.raises(StorageError, match=r"an older copy of this site's ledger, or another one"):
        ledger.compare(sent())
    ledger.close()


# --- signatures -----------------------------------------------------------------------------------


def test_signed_heads_are_found_with_where_and_when(home):
    [first, second] = home.serve("one", "two")
    found = home.audit()
    receipts = [first.receipt, second.receipt]
    assert [(s.run, s.head, s.receipt) for s in found.heads] == [
        (each.run, each.head, each) for each in receipts
    ]
    # Hello; then of each run an offer, three answers, what was fetched and its countersignature;
    # Leaving.
    assert first.receipt.head.lines == 5
    assert second.receipt.head.lines == 11
    assert found.lines == 14
    assert found.both == found.own == found.heads[1]
    assert found.after == {"Fetched": 1, "Countersigned": 1, "Leaving": 1}
    line = home.path.read_bytes().splitlines()[10]
    assert second.receipt.head.last == hashlib.sha256(line).hexdigest()
    home.serve()  # a process that comes for nothing: two more lines
    assert home.audit().after == {"Fetched": 1, "Countersigned": 1, "Leaving": 2, "Hello": 1}


def test_a_cut_end_is_missed_by_the_coordinators_record(home):
    kept = home.serve("one", "two")
    whole = home.lines
    home.rewrite([e for e in whole if e["kind"] != "Answer"])
    with pytest.raises(
        StorageError, match=r"line 3: the head of run one, .* covers 5 lines .* but 2 lines"
    ):
        home.audit()
    home.rewrite(whole[:8])
    assert home.audit().both.run == "one", "the file alone does not show it"
    with pytest.raises(
        StorageError, match=r"at the end of run two, .* but this ledger has 8: its last lines"
    ):
        home.audit(home.record(kept))
    assert home.audit(home.record(kept[:1])).compared == 1
    home.rewrite(
        [
            {k: v for k, v in e.items() if k != "signature"}
            for e in home.lines
            if e["kind"] == "Fetched"
        ]
    )
    with pytest.raises(StorageError, match="it records 1 results and no signature"):
        home.audit()


def resigned(home, entries, site, name="north"):
    """The attacker's chain under heads of a key that he has."""
    identity = home.identity(site)
    private = private_key(identity.key_pem)
    certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
    previous = GENESIS
    made = []
    for entry in entries:
        if entry["kind"] == "Fetched":
            head = LedgerHead(len(made), previous, entry["head"]["at"])
            signature = sign(private, said_by_site(name, entry["run"], head))
            entry = {
                **entry,
                "head": dataclasses.asdict(head),
                "signature": signature,
                "certificate": certificate,
            }
        made.append(entry)
        previous = hashlib.sha256(
            json.dumps({**entry, "previous": previous}, sort_keys=True).encode()
        ).hexdigest()
    home.rewrite(made)


def test_heads_of_another_key_are_not_this_sites(home):
    kept = home.serve("one")
    entries = [e for e in home.lines if e["kind"] not in ("Answer", "Countersigned")]
    resigned(home, entries, "stranger")
    with pytest.raises(
        StorageError, match=r"not signed by north: .* not of this federation's authority"
    ):
        home.audit()
    resigned(home, entries, "south")
    with pytest.raises(
        StorageError, match=r"not signed by north: .* is of 'south', not of 'north'"
    ):
        home.audit()
    # Its own operator has the key. What was countersigned is what he signed before, and the
    # coordinator has it.
    longer = [
        *entries[:-1],
        *(e for e in entries if e["kind"] == "Offer" for _ in range(5)),
        *entries[-1:],
    ]
    resigned(home, longer, "north")
    with pytest.raises(
        StorageError, match="line 5 of this ledger is a different one: the ledger was replaced"
    ):
        home.audit(home.record(kept))


@pytest.mark.parametrize("who", ["south", "stranger"])
def test_only_the_coordinator_countersigns(home, who):
    home.serve("one", countersign=False)
    identity = home.identity(who)
    head = home.audit().own
    certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
    receipt = Countersigned("one", head.head, "2026-11-21T20:00:00.000+00:00", "", certificate)
    signature = sign(
        private_key(identity.key_pem), said_by_coordinator("north", head.signature, receipt)
    )
    entry = {
        "at": "", "kind": "Countersigned", "run": "one", "head": dataclasses.asdict(head.head),
        "countersigned": receipt.at, "signature": signature, "certificate": certificate,
    }  # fmt: skip
    home.rewrite([*home.lines, entry])
    with pytest.raises(
        StorageError, match=r"for run one is not the coordinator's: .* not (a|of this)"
    ):
        home.audit()


def test_a_countersignature_of_something_else_is_not_kept(home):
    identity = home.identity()
    ledger = Ledger(home.path, HeadSigner(identity))
    signed = home.one(ledger, identity, "one", countersign=False).receipt
    for wrong, why in (
        (replace(signed, run="two"), "without a signed head"),
        (
            replace(signed, head=LedgerHead(1, signed.head.last, signed.head.at)),
            "it is for another head",
        ),
    ):
        assert why in ledger.countersigned(wrong)
    receipt = home.one(ledger, identity, "two", countersign=False).receipt
    assert "does not match that certificate's key" in ledger.countersigned(
        replace(receipt, at="2020")
    )
    other = home.identity("south").certificate_pem
    refused = home.notary.countersign("north", other, ledger.record(Fetched("three"))).receipt
    assert refused.signature == ""
    assert "not signed by the key" in refused.reason
    assert "did not countersign" in ledger.countersigned(refused)
    ledger.close()
    assert home.audit().both is None
    assert [s.run for s in home.audit().heads] == ["one", "two", "three"]


def test_a_renewed_certificate_and_a_new_key_leave_earlier_heads_good(home):
    first = home.identity().certificate_pem
    home.serve("one")
    request = home.folder / "north" / "site.csr"
    install(home.folder / "north", issued(home.folder / "ca", request))
    assert home.identity().certificate_pem != first
    home.serve("two")
    (home.folder / "north" / "site.key").unlink()
    enrol(home.folder / "north", "north")
    install(home.folder / "north", issued(home.folder / "ca", request))
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
        "checkpoints of the coordinator's record that fit: 2",
    ):
        assert words in shown.output
    found = json.loads(agent(*command, "--json").output)
    assert found["both"]["run"] == "two"
    assert found["both"]["head"]["lines"] == 11
    assert found["compared"] == 2
    plain = agent("ledger", home.path).output.splitlines()
    assert plain[-1].startswith("14 entries, times in UTC; the chain is whole up to the last line")
    assert all(len(line) < 200 for line in plain[:-1]), "digests are for --json"
    lines = home.path.read_bytes().splitlines(keepends=True)
    home.path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    for words in (command[:2], command):  # one fault with one code, however it is read
        with pytest.raises(StorageError) as broken:
            agent(*words)
        told = (
            "the chain is broken: this line or the one before was changed, removed or inserted."
            " Keep the file as evidence"
        )
        assert str(broken.value).startswith(f"{home.path}, line 3: {told}")
        assert broken.value.exit_code == 8


def test_a_record_without_a_head_of_the_site_is_no_evidence(home):
    [kept] = home.serve("one")
    path = home.folder / CHECKPOINTS
    for text in ("", "{}", "[]", "not JSON", '{"heads": [3]}', '{"checkpoints": 3}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(
            BadData, match=None if text else "took part to its end: a refused run has none"
        ):
            read_record(path, "north")
    with pytest.raises(BadData, match="north did not sign"):
        home.audit(home.record([replace(kept, signature="00")]))
    receipt = replace(kept.receipt, at="2020-01-01T00:00:00.000+00:00")
    with pytest.raises(BadData, match="the coordinator did not sign"):
        home.audit(home.record([replace(kept, receipt=receipt)]))


def test_the_coordinator_shows_a_runs_checkpoints_as_a_site_reads_them(home, tmp_path):
    kept = home.serve("r-one")
    path = tmp_path / "runs.sqlite"
    with contextlib.closing(RunStore(path)) as store:
        store.begin(Plan("r-one", "clinics", Membership(("north", "south"), 2)), "2026-01-01")
        store.write("r-one", kept[0], Timing(), "2026-01-01")
        assert store.begun("r-one") == Begun(), "nothing is decided by it"

    def show(*words):
        return (
            CliRunner()
            .invoke(coordinator_app, ["show", "r-o", *words, "--federation", str(path)])
            .stdout
        )

    assert "\nledger of north: 5 lines up to " in show()
    (tmp_path / CHECKPOINTS).write_text(show("--json"))
    assert len(read_record(tmp_path / CHECKPOINTS, "north")) == 1
