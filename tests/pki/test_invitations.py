"""Invitations over real TLS on loopback: who gets a certificate by one, who does not, and what is
never sent.
"""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coordinator.authority import invitations
from coordinator.authority.authorised import Authorised, revoke
from coordinator.authority.invitations import invite, redeem, withdraw
from coordinator.authority.pki import create_authority
from coordinator.cli.app import app as coordinator_app
from coordinator.service import enrolment
from coordinator.service.enrolment import Enrolment
from coreg_core.errors import CoregError, Refused, StorageError, Unreachable, UsageError
from coreg_core.outcomes import Notice
from coreg_wire.clock import utc_now
from coreg_wire.identity.invitation import Invitation, parse_invitation, proof
from coreg_wire.identity.signatures import key_pem, load_key
from site_agent.cli.app import app as agent_app
from site_agent.identity.enrolment import enrol, install, join
from site_agent.identity.identity import check_identity
from tests.issued import clock, issued


@dataclass
class Coordinator:
    """A folder, and its listener on a thread of its own."""

    folder: Path
    port: int
    notices: list[Notice] = field(default_factory=list)
    listed: tuple[str, ...] = ("clinic", "lab-1", "lab-2")

    def invite(self, site: str = "clinic") -> Invitation:
        return invite(self.folder, site, f"127.0.0.1:{self.port}")

    def told(self) -> list[str]:
        return [notice.name for notice in self.notices]


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[Coordinator]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        made = Coordinator(folder, free.getsockname()[1] - 1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(
        Enrolment(folder, made.notices.append, lambda: made.listed).serve(
            "127.0.0.1", made.port + 1
        )
    )
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        for _ in range(1000):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", made.port + 1)),
            ):
                break
            time.sleep(0.005)
        yield made
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
        loop.close()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    create_authority(tmp_path / "fed", [])
    with listening(tmp_path / "fed") as made:
        yield made


def asked(invitation: Invitation, request: Path, as_site: str = "") -> dict[str, str]:
    """A hand-made question of a client that verifies nothing."""
    csr = request.read_text()
    given = proof(invitation.secret, invitation.site, csr)
    return raw(
        invitation,
        {"ask": "certificate", "site": as_site or invitation.site, "request": csr, "proof": given},
    )


def raw(invitation: Invitation, question: dict[str, str] | bytes) -> dict[str, str]:
    line = question
    if not isinstance(question, bytes):
        line = json.dumps(question).encode() + b"\n"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    address = (invitation.host, invitation.enrolment_port)
    with socket.create_connection(address, 30) as plain, context.wrap_socket(plain) as channel:
        channel.sendall(line)
        answer: dict[str, str] = json.loads(channel.makefile("rb").readline() or b"{}")
    return answer


# --- the right use


def test_an_invitation_is_worth_one_certificate_for_one_key(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    invitation = coordinator.invite()
    identity = join(invitation, tmp_path / "site")
    assert identity.name == "clinic"
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == [
        "ca.pem",
        "site.key",
        "site.pem",
    ]
    Authorised(coordinator.folder).check("clinic", identity.certificate_pem)
    assert coordinator.told() == ["enrolled"]
    lines = (coordinator.folder / "invitations" / "clinic").read_text().splitlines()
    assert lines[0] == str(invitation)
    assert lines[2].endswith(f"by {Authorised(coordinator.folder).sites()['clinic']}")
    for name in ("site.pem", "ca.pem"):  # its answer was lost
        (tmp_path / "site" / name).unlink()
    assert join(invitation, tmp_path / "site").certificate_pem == identity.certificate_pem
    assert coordinator.told() == ["enrolled"], "told once"
    with pytest.raises(Refused, match="was used by another key"):
        join(invitation, tmp_path / "thief")
    assert f"`coreg-coordinator revoke {coordinator.folder} clinic`" in coordinator.notices[-1].text
    assert not (tmp_path / "thief" / "site.pem").exists()


def test_the_command_writes_the_settings_of_a_new_site_and_leaves_those_that_are_there(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    invitation = coordinator.invite()
    run = CliRunner()
    Path("line.txt").write_text(f"Type this at the site:\n  {invitation}\n")
    told = run.invoke(agent_app, ["join", "line.txt"], catch_exceptions=False).output
    assert "clinic: joined, certificate valid until" in told
    assert (
        told.splitlines()[-1]
        == "next: coreg-agent check --data local.csv; coreg-agent --data local.csv"
    )
    assert f'coordinator = "127.0.0.1:{coordinator.port}"' in Path("agent.toml").read_text()
    Path("agent.toml").write_text('coordinator = "elsewhere:1"\n')
    told = run.invoke(agent_app, ["join", str(invitation)], catch_exceptions=False).output
    assert "agent.toml: exists, unchanged" in told
    assert "has coordinator = 'elsewhere:1', and the invitation is from" in told
    # The key and the secret are where they belong, and nowhere else.
    key = load_key(Path("identity/site.key").read_bytes(), Path("site.key"))
    for hidden, places in (
        (key_pem(key).split(b"\n")[1], {"identity/site.key"}),
        (invitation.secret.encode(), {"line.txt", "fed/invitations/clinic"}),
    ):
        assert {
            path.as_posix()
            for path in Path().rglob("*")
            if path.is_file() and hidden in path.read_bytes()
        } == places


def test_a_new_invitation_replaces_an_expired_certificate(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    request = enrol(tmp_path / "site", "clinic")
    long_ago = utc_now() - timedelta(days=100)
    ca = coordinator.folder
    folder = tmp_path / "site"
    key = (folder / "site.key").read_bytes()
    shutil.rmtree(ca)
    with clock(long_ago):
        create_authority(ca, [])
        install(folder, issued(ca, request, days=1))
    with pytest.raises(Refused, match="expired"):
        check_identity(folder)
    join(coordinator.invite(), folder)
    assert check_identity(folder).days_left() > 300
    assert (folder / "site.key").read_bytes() == key
    with pytest.raises(
        UsageError, match=r"holds the certificate of clinic\. Join as lab-1 in another folder"
    ):
        join(coordinator.invite("lab-1"), folder)


def test_a_certificate_that_is_not_valid_yet_names_both_clocks(tmp_path: Path) -> None:
    with clock(utc_now() + timedelta(days=2)):
        create_authority(tmp_path / "fed", [])
    with listening(tmp_path / "fed") as made:
        with clock(utc_now() + timedelta(days=2)):
            invitation = made.invite()
        with pytest.raises(Refused, match=r"not valid yet, .* UTC\. Correct this clock\. If it is"):
            join(invitation, tmp_path / "site")


# --- wrong uses


def test_expired_replaced_revoked_and_invented_invitations_are_refused(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = coordinator.invite()
    new = coordinator.invite()
    for wrong in (old, replace(new, secret="0" * 32), replace(new, site="lab-1")):
        with pytest.raises(Refused, match="is not valid: it was replaced or revoked"):
            join(wrong, tmp_path / wrong.site)
    assert withdraw(coordinator.folder, "clinic"), "an invitation is revoked too"
    with pytest.raises(Refused, match="is not valid"):
        join(new, tmp_path / "clinic")
    assert set(coordinator.told()) == {"enrolment_refused"}
    assert Authorised(coordinator.folder).sites() == {}
    used = coordinator.invite()
    join(used, tmp_path / "clinic")
    revoke(coordinator.folder, "clinic")  # as by hand: the line was deleted
    with pytest.raises(Refused, match="was revoked or has expired"):
        join(used, tmp_path / "clinic")
    monkeypatch.setattr(invitations, "VALID", timedelta(seconds=-1))
    with pytest.raises(
        Refused, match=r"expired on \d{4}-.* Ask the coordinator's operator for a new invitation"
    ):
        join(coordinator.invite(), tmp_path / "clinic")
    assert Authorised(coordinator.folder).sites() == {}


def test_a_site_that_was_removed_from_the_list_gets_no_certificate(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """Its invitation is still open, and named it."""
    invitation = coordinator.invite()
    coordinator.listed = ("lab-1",)
    with pytest.raises(Refused, match="clinic is not in this federation's list of sites now"):
        join(invitation, tmp_path / "clinic")
    assert "has a valid invitation, and is not in the list" in coordinator.notices[-1].text
    assert Authorised(coordinator.folder).sites() == {}
    coordinator.listed = ("clinic", "lab-1")
    join(invitation, tmp_path / "clinic")
    assert set(Authorised(coordinator.folder).sites()) == {"clinic"}


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:a:b:c:d", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_machine_counts_as_one_address(address: str, counted: str) -> None:
    assert enrolment.network_of(address) == counted


def test_a_proof_serves_for_its_request_and_its_site_alone(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    invitation = coordinator.invite()
    other = coordinator.invite("lab-1")
    mine, thief = (enrol(tmp_path / name, "clinic") for name in ("mine", "thief"))
    seen = proof(invitation.secret, "clinic", mine.read_text())
    stolen = {"ask": "certificate", "site": "clinic", "request": thief.read_text(), "proof": seen}
    assert "is not valid" in raw(invitation, stolen)["refused"]
    assert "is not valid" in asked(invitation, mine, as_site="lab-1")["refused"]
    assert (
        asked(other, mine)["refused"] == "The invitation is for lab-1, but the request for clinic."
    )
    for text, words in (
        ("rubbish", "not a PEM certificate request"),
        ("-----BEGIN PRIVATE KEY-----", "private key"),
    ):
        (tmp_path / "x.csr").write_text(text)
        assert words in asked(invitation, tmp_path / "x.csr")["refused"]
    outside = {"ask": "certificate", "site": "../ca", "request": "", "proof": "0" * 64}
    for question in ({"ask": "more"}, {"ask": "certificate"}, outside):
        assert "refused" in raw(invitation, question)
    for line in (b"[" * 9000 + b"\n", b"\xff\n", b"\n", b"7" * 9000 + b"\n"):
        assert set(raw(invitation, line)) <= {"refused"}
    assert Authorised(coordinator.folder).sites() == {}
    assert "certificate" in asked(invitation, mine)


# --- a man in the middle; too many, too long, too slow


def test_nothing_of_the_secret_is_sent_to_another_authority(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also shows the true authority before its own, which must not make its own trusted."""
    monkeypatch.setattr("site_agent.identity.enrolment.STARTING", 0.0)
    invitation = coordinator.invite()
    create_authority(tmp_path / "false", [])
    true, own = (
        (folder / "ca.pem").read_bytes() for folder in (coordinator.folder, tmp_path / "false")
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        tmp_path / "false" / "coordinator.pem", tmp_path / "false" / "coordinator.key"
    )
    heard = list[bytes]()

    def answer(server: socket.socket, shown: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                with (
                    contextlib.suppress(ssl.SSLError),
                    context.wrap_socket(server.accept()[0], True) as channel,
                ):
                    heard.append(channel.makefile("rb").readline())
                    channel.sendall(json.dumps({"authority": shown.decode()}).encode() + b"\n")

    for shown, words in (
        (own, "somebody intercepts"),
        (true, "its certificate is not valid"),
        (true + own, "not valid"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=answer, args=(server, shown), daemon=True).start()
            elsewhere = replace(invitation, port=server.getsockname()[1] - 1)
            with pytest.raises(Refused, match=words):
                join(elsewhere, tmp_path / "site")
            server.shutdown(socket.SHUT_RDWR)
    assert [json.loads(line) for line in heard] == [{"ask": "authority"}] * 3
    with pytest.raises(Unreachable, match=r"does not answer .* firewall"):
        join(elsewhere, tmp_path / "site")
    join(invitation, tmp_path / "site")
    create_authority(tmp_path / "third", [])
    with pytest.raises(Refused, match="is not the one that this site trusts"):
        join(invite(tmp_path / "third", "clinic", "127.0.0.1:1"), tmp_path / "site")


def test_refusals_are_delayed(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(enrolment, "DELAY_SECONDS", 0.5)
    invitation = coordinator.invite()
    seconds = list[float]()
    wrong = {"ask": "certificate", "site": "clinic", "request": "", "proof": "0" * 64}
    for _ in range(12):
        began = time.monotonic()
        assert "refused" in raw(invitation, wrong)
        seconds.append(time.monotonic() - began)
    assert min(seconds[:10]) < 0.4
    assert min(seconds[10:]) >= 0.5
    assert coordinator.told() == ["enrolment_refused"] * 10, "a flood does not fill the log"
    join(invitation, tmp_path / "site")
    monkeypatch.setattr(invitations, "VALID", timedelta(seconds=-1))
    for late, folder, words, logged in (
        (
            invitation,
            "thief",
            "was used by another key",
            "two keys have used the invitation of clinic",
        ),
        (coordinator.invite("lab-1"), "lab-1", "expired on", "expired on"),
    ):
        with pytest.raises(Refused, match=words):
            join(late, tmp_path / folder)
        assert logged in coordinator.notices[-1].text, (
            "a flood does not hide a holder of the secret"
        )
    began = time.monotonic()
    assert "authority" in raw(invitation, {"ask": "authority"})
    assert time.monotonic() - began < 0.4, "others are not delayed"


def test_long_and_slow_clients_are_cut_and_leave_room_for_others(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(enrolment, "SECONDS", 1.5)
    invitation = coordinator.invite()
    with contextlib.suppress(OSError):  # it is cut while it sends, or before it reads
        assert raw(invitation, b"x" * (enrolment.MOST_BYTES + 1)) == {}
    with contextlib.ExitStack() as silent:

        def silent_ones(source: str, count: int) -> list[socket.socket]:
            address = "127.0.0.1", coordinator.port + 1
            return [
                silent.enter_context(socket.create_connection(address, 20, (source, 0)))
                for _ in range(count)
            ]

        idle = silent_ones("127.0.0.1", enrolment.MOST_OF_ONE_ADDRESS)
        monkeypatch.setattr("site_agent.identity.enrolment.STARTING", 0.0)
        with pytest.raises(Unreachable):  # those that have not begun TLS count
            join(invitation, tmp_path / "site")
        monkeypatch.setattr("site_agent.identity.enrolment.STARTING", 10.0)
        join(invitation, tmp_path / "site")  # it tried again until they were cut
        for connection in idle:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        monkeypatch.setattr(enrolment, "SECONDS", 20.0)
        silent_ones("127.0.0.2", 300)
        began = time.monotonic()
        join(coordinator.invite("lab-1"), tmp_path / "lab-1")
        assert time.monotonic() - began < enrolment.SECONDS / 2
        assert coordinator.told().count("enrolment_busy") > 100, "and the operator hears of it"


# --- the operator's faults


def test_a_fault_of_the_coordinator_is_told_to_its_operator_alone(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invitation = coordinator.invite()
    key = coordinator.folder / "ca.key"
    key.chmod(0o644)
    with pytest.raises(Refused, match="cannot issue the certificate now"):
        join(invitation, tmp_path / "site")
    assert "chmod 600" in coordinator.notices[-1].text
    key.chmod(0o600)
    join(invitation, tmp_path / "site")
    (coordinator.folder / "invitations" / "lab-1").write_text(
        f"{coordinator.invite('lab-1')}\nvalid until never\n"
    )
    with pytest.raises(
        StorageError, match=r"cannot be read\. Replace it: `coreg-coordinator invite"
    ) as caught:
        redeem(coordinator.folder, "lab-1", b"", "0" * 64)
    assert invitation.secret not in str(caught.value)
    monkeypatch.setattr("os.geteuid", lambda: 65534)  # as after a command as root
    with pytest.raises(
        StorageError, match=r"lab-1 belongs to .* cannot be read\. Replace it: `sudo -u .* invite"
    ):
        redeem(coordinator.folder, "lab-1", b"", "0" * 64)
    key.unlink()
    with pytest.raises(UsageError, match=r"ca\.key does not exist"):
        coordinator.invite("lab-2")


def test_a_port_that_is_taken_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator runs on, and tells its operator once."""
    monkeypatch.setattr("coordinator.service.enrolment.TRIED_AGAIN", 0.05)
    notices = list[Notice]()

    async def taken_and_freed() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            enrolment = Enrolment(tmp_path, notices.append, tuple)
            serving = asyncio.create_task(enrolment.serve("127.0.0.1", port))
            await asyncio.sleep(0.2)
            assert [notice.name for notice in notices] == ["enrolment_closed"]
        for _ in range(100):
            await asyncio.sleep(0.05)
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
        else:
            raise AssertionError("the port was free, and nobody listened")
        serving.cancel()

    asyncio.run(taken_and_freed())
    assert len(notices) == 1


def test_init_and_invite_print_the_lines_that_join_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    hosts = ["--host", "fed.example", "--host", "10.0.0.1"]
    sites = ["--site", "a", "--site", "b"]
    made = run.invoke(coordinator_app, ["init", "fed", *hosts, *sites])
    assert (
        "a (valid 7 days, once): type `coreg-agent join`, and paste below it\n  coreg://"
        in made.output
    )
    assert "join coreg://" not in made.output, "a secret in a command is in the shell's history"
    found = [
        parse_invitation(line) for line in made.output.splitlines() if line.startswith("  coreg://")
    ]
    assert [(each.address, each.site) for each in found] == [
        ("fed.example:7600", "a"),
        ("fed.example:7600", "b"),
    ]
    assert made.output.endswith("and run `coreg-coordinator run fed`\n")
    assert "both sites write scores_of_two = true into policy.toml" in made.output
    files = [Path("fed/invitations/a"), *Path("fed").glob("*.key"), Path("fed/federation.toml")]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    again = run.invoke(coordinator_app, ["invite", "fed", "a"])
    assert str(found[0]) not in again.output
    assert Path("fed/invitations/a").read_text().splitlines()[0] in again.output
    for command in (["invite", "fed", "c"], ["init", "fed", "--site", "c"]):
        unlisted = run.invoke(coordinator_app, command)
        assert re.search("does not list '?c'?", str(unlisted.exception)), command
    Path("file").mkdir()
    Path("file/federation.toml").write_text('[federation]\nname = "f"\nsites = ["x", "y"]\n')
    kept = run.invoke(coordinator_app, ["init", "file"])
    assert "exists, unchanged" in kept.output
    assert kept.output.count("coreg-agent join") == 2
    late = run.invoke(coordinator_app, ["init", "file", "--target", "y", "--id", "patient"])
    assert "--target, --id would have no effect. Set these keys in the file" in str(late.exception)


def test_init_names_the_columns_and_the_task_for_all_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "init fed --site a --site b --site c --target y --id patient --task classification"
    made = CliRunner().invoke(coordinator_app, words.split())
    assert made.exit_code == 0
    assert "scores_of_two" not in made.output, "with three sites no policy has to allow scores"
    printed = CliRunner().invoke(coordinator_app, ["plan", "fed"]).stdout
    plan = json.loads(printed)
    columns = plan["target"], plan["id"], plan["objective"]["task"]
    assert columns == ("y", "patient", "classification")


# --- the line


@given(
    st.sampled_from(["fed.example.org", "10.0.0.7", "::1", "2001:db8::7", "localhost"]),
    st.integers(1, 65534),
)
def test_a_line_is_read_as_it_was_written(host: str, port: int) -> None:
    fingerprint = bytes(range(32)).hex()
    secret = bytes(range(16)).hex()
    invitation = Invitation(host, port, "lab-1", fingerprint, secret)
    assert parse_invitation(f" {invitation}\n") == invitation
    without_secret = str(replace(invitation, secret=""))
    assert str(invitation).removeprefix(without_secret) == secret
    assert "secret" not in repr(invitation)


@pytest.mark.parametrize(
    "written", ["'{}'", '"{}"', "\ufeff{}", "“{}”.", "<{}>", "Your invitation: {}\nBest regards"]
)
def test_a_line_is_read_in_quotes_after_a_byte_order_mark_and_in_a_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    redeemed = list[str]()

    def redeem(invitation: Invitation, _folder: Path) -> None:
        redeemed.append(str(invitation))
        raise Refused("not today.")

    monkeypatch.setattr("site_agent.identity.enrolment.join", redeem)
    text = written.format(GOOD)
    assert str(parse_invitation(text)) == GOOD
    (tmp_path / "invitation").write_text(text, encoding="utf-8")
    for argument in (text, str(tmp_path / "invitation")):
        CliRunner().invoke(agent_app, ["join", argument])
    assert redeemed == [GOOD, GOOD]


GOOD = str(Invitation("h", 7600, "clinic", "a" * 64, "5ec2e7" + "0" * 26))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (GOOD[1:], "does not begin with coreg://"),
        (GOOD[:-1], "The end of the invitation is missing or damaged"),
        (GOOD.replace("a" * 64, "a" * 63), "fingerprint is not 64"),
        (GOOD.replace(":7600", ""), "no HOST:PORT"),
        (GOOD.replace("7600", "65535"), "no HOST:PORT"),
        (GOOD.replace("/clinic", ""), "names no site"),
        (GOOD.replace("clinic", "../ca"), "not a valid site name"),
    ],
)
def test_a_damaged_line_is_told_without_its_secret(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_invitation(line)
    assert "5ec2e7" not in str(caught.value)
    told = CliRunner().invoke(agent_app, ["join", line])
    assert isinstance(told.exception, CoregError)
    assert "5ec2e7" not in str(told.exception)
