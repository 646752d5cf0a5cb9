"""Certificates that run out, and authorities: renewed while both ends stay up, believed without a telephone, or with one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from coordinator.authority.authorised import Authorised
from coordinator.authority.pki import create_authority, expiry_warnings, load_server, reissue_server, sign_request
from coordinator.authority.renewal import finish_authority, not_yet_signed, renew_authority
from coreg_core.errors import BadData, Refused, UsageError
from coreg_wire.identity.credentials import RenewableServer, client_credentials, peer_certificate
from coreg_wire.identity.keys import VARIABLE, is_encrypted
from coreg_wire.identity.names import fingerprint, load_certificates
from coreg_wire.identity.renewal_requests import read_renewal
from site_agent.cli.app import app
from site_agent.identity.identity import Identity, check_identity, enrol, install, renew
from site_agent.identity.peers import peer_of

DAY = timedelta(days=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An authority, and sites a and b that it signed."""
    create_authority(tmp_path / "ca", [])
    for site in "ab":
        enrol(tmp_path / site, site)
        install(tmp_path / site, sign_request(tmp_path / "ca", tmp_path / site / "site.csr").certificate_path)
    return tmp_path


def renewed(home: Path, site: str, *, new_key: bool = False) -> Identity:
    """What the operators of both sides type, one after the other."""
    made = renew(home / site, new_key=new_key)
    signed = sign_request(home / "ca", made.request_path, renewal=True)
    return install(home / site, signed.certificate_path)


# --- a site's certificate -----------------------------------------------------------------------------------------


def test_a_certificate_is_renewed_over_itself_and_both_count_until_it_runs_out(home: Path) -> None:
    before = check_identity(home / "a")
    made = renew(home / "a")
    assert made.reused_key
    signed = sign_request(home / "ca", made.request_path, days=400, renewal=True)
    assert signed.same_key
    check = Authorised(home / "ca").check
    check("a", before.certificate_pem)  # it goes on with this one until the answer is here
    after = install(home / "a", signed.certificate_path)
    assert after.key_pem == before.key_pem
    assert after.not_after > before.not_after
    check("a", before.certificate_pem)
    check("a", after.certificate_pem)
    third = renewed(home, "a")
    check("a", after.certificate_pem)
    check("a", third.certificate_pem)
    check("a", before.certificate_pem)  # a session that is still open uses it
    renewed(home, "a")
    renewed(home, "a")
    check("a", after.certificate_pem)
    with pytest.raises(Refused, match="was revoked or replaced"):
        check("a", before.certificate_pem)  # the fifth
    sign_request(home / "ca", home / "a" / "site.csr")  # without renewal: the one before is out at once
    with pytest.raises(Refused, match="was revoked or replaced"):
        check("a", third.certificate_pem)


def test_an_older_answer_does_not_replace_the_installed_one(home: Path) -> None:
    """Both have the name a.pem; last year's file is still in the folder of downloads."""
    older = (home / "ca" / "a.pem").read_bytes()
    made, now = renew(home / "a"), datetime.now(UTC) + 2 * DAY
    signed = sign_request(home / "ca", made.request_path, renewal=True, now=now)
    after = install(home / "a", signed.certificate_path, now=now)
    assert install(home / "a", signed.certificate_path, now=now) == after, "the same file again"
    (home / "a.pem").write_bytes(older)
    with pytest.raises(Refused, match=r"an older answer\. Its certificate begins .* Nothing was installed"):
        install(home / "a", home / "a.pem", now=now)
    assert check_identity(home / "a", now=now) == after
    (home / "a" / "site.pem").write_text("damaged")
    assert install(home / "a", signed.certificate_path, now=now) == after, "an answer mends a damaged certificate"


def test_an_expired_certificate_is_renewed_with_the_same_commands(home: Path) -> None:
    long_ago = datetime.now(UTC) - 30 * DAY
    create_authority(home / "old", [], now=long_ago)
    enrol(home / "late", "late")
    install(
        home / "late", sign_request(home / "old", home / "late" / "site.csr", days=1, now=long_ago).certificate_path,
        now=long_ago,
    )  # fmt: skip
    with pytest.raises(Refused, match=r"site\.pem expired on .*enroll --renew"):
        check_identity(home / "late")
    signed = sign_request(home / "old", renew(home / "late").request_path, renewal=True)
    install(home / "late", signed.certificate_path)
    Authorised(home / "old").check("late", check_identity(home / "late").certificate_pem)


def test_after_an_answer_only_what_is_left_is_to_be_done(home: Path) -> None:
    def installed(folder: str, answer: Path) -> str:
        done = CliRunner().invoke(app, ["enroll", "--identity", str(home / folder), "--install", str(answer)])
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()[-1]

    first = sign_request(home / "ca", enrol(home / "new", "new").request_path)
    assert "pin the other sites" in installed("new", first.certificate_path)
    same = sign_request(home / "ca", renew(home / "new").request_path, renewal=True)
    assert installed("new", same.certificate_path) == "next: `coreg-agent check --config agent.toml`"
    other = sign_request(home / "ca", renew(home / "new", new_key=True).request_path, renewal=True)
    assert "have the other sites pin this site's new key" in installed("new", other.certificate_path)
    (home / "new" / "site.pem").write_text("damaged")
    assert "pin the other sites" in installed("new", other.certificate_path), "an answer mends a damaged certificate"


def test_a_renewal_with_another_key_keeps_the_old_identity_until_the_answer_is_installed(home: Path) -> None:
    before = check_identity(home / "a")
    made = renew(home / "a", new_key=True)
    assert not made.reused_key
    assert renew(home / "a", new_key=True).key_fingerprint == made.key_fingerprint, "asked twice, one key"
    assert check_identity(home / "a").key_pem == before.key_pem
    signed = sign_request(home / "ca", made.request_path, renewal=True)
    assert signed.same_key is False
    after = install(home / "a", signed.certificate_path)
    assert after.key_pem != before.key_pem
    assert not (home / "a" / "next.key").exists()
    assert (home / "a" / "site.key").stat().st_mode & 0o777 == 0o600
    assert check_identity(home / "a").certificate_pem == after.certificate_pem
    Authorised(home / "ca").check("a", after.certificate_pem)


def test_what_peers_pinned_holds_over_a_renewal_and_vouches_for_a_new_key(home: Path) -> None:
    pinned = {"a": peer_of(home / "a" / "site.pem", {}).fingerprint}
    renewed(home, "a")
    assert peer_of(home / "a" / "site.pem", pinned).verdict == "pinned"
    made = renew(home / "a", new_key=True)
    told = peer_of(made.request_path, pinned)
    assert (told.verdict, told.fingerprint) == ("a new key, signed by the one that is pinned", made.key_fingerprint)
    install(home / "a", sign_request(home / "ca", made.request_path, renewal=True).certificate_path)
    assert peer_of(home / "a" / "site.pem", pinned).verdict == "ANOTHER KEY THAN THE ONE THAT IS PINNED"
    assert peer_of(home / "a" / "site.pem", {"a": told.fingerprint}).verdict == "pinned"
    # The coordinator, which can sign certificates in any name, cannot make the old key vouch.
    enrol(home / "forged", "a")
    install(home / "forged", sign_request(home / "ca", home / "forged" / "site.csr").certificate_path)
    forged = renew(home / "forged", new_key=True)
    assert peer_of(forged.request_path, pinned).verdict == "ANOTHER KEY THAN THE ONE THAT IS PINNED"


def test_only_the_listed_certificate_of_the_same_name_vouches(home: Path) -> None:
    plain = home / "a" / "site.csr"
    with pytest.raises(Refused, match="is not a renewal: it is not signed by a's certificate"):
        sign_request(home / "ca", plain, renewal=True)
    stale = renew(home / "a").request_path.read_bytes()
    sign_request(home / "ca", plain)  # a is signed again by hand: what it had before does not count any more
    (home / "stale.csr").write_bytes(stale)
    with pytest.raises(Refused, match="was revoked or replaced"):
        sign_request(home / "ca", home / "stale.csr", renewal=True)
    other = renew(home / "b").request_path.read_bytes()
    mixed = home / "mixed.csr"
    mixed.write_bytes(
        stale[: stale.index(b"-----BEGIN CERTIFICATE-----")] + other[other.index(b"-----BEGIN CERTIFICATE-----") :]
    )
    with pytest.raises(Refused, match="not signed by the key of the certificate in it"):
        sign_request(home / "ca", mixed, renewal=True)
    assert read_renewal(plain.read_bytes(), "x") is not None
    mixed.write_bytes(other.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE RUBBISH"))
    with pytest.raises(BadData):
        sign_request(home / "ca", mixed, renewal=True)


def test_a_renewed_key_is_encrypted_as_the_old_one_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "correct horse battery")
    create_authority(tmp_path / "ca", [], secret=b"correct horse battery")
    enrol(tmp_path / "a", "a", secret=b"correct horse battery")
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)
    made = renew(tmp_path / "a", new_key=True)
    assert is_encrypted((tmp_path / "a" / "next.key").read_bytes())
    install(tmp_path / "a", sign_request(tmp_path / "ca", made.request_path, renewal=True).certificate_path)
    assert is_encrypted((tmp_path / "a" / "site.key").read_bytes())
    renew_authority(tmp_path / "ca")
    assert is_encrypted((tmp_path / "ca" / "ca.key").read_bytes())
    assert is_encrypted((tmp_path / "ca" / "previous-ca.key").read_bytes())


# --- the authority ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(ca: Path) -> AsyncIterator[tuple[int, RenewableServer]]:
    """Who calls is told its name, over mutual TLS with certificates that can be replaced."""
    allowed = Authorised(ca)

    async def who(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        name, pem = peer_certificate(context)
        allowed.check(name, pem)
        return name.encode()

    files = load_server(ca)
    renewable = RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem)
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(who)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", {"Who": handler}),))
    port = server.add_secure_port("127.0.0.1:0", renewable.credentials)
    await server.start()
    try:
        yield port, renewable
    finally:
        await server.stop(None)


def reload(ca: Path, renewable: RenewableServer) -> None:
    files = load_server(ca)
    renewable.renew(files.key_pem, files.certificate_pem, files.ca_pem)


@contextlib.asynccontextmanager
async def dialled(port: int, identity: Identity) -> AsyncIterator[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]]:
    credentials = client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        yield channel.unary_unary("/test.Who/Who")


async def name_of(port: int, identity: Identity) -> bytes:
    async with dialled(port, identity) as call:
        return await call(b"", timeout=10)


def test_a_new_authority_takes_over_while_sessions_go_on_and_no_telephone_rings(home: Path) -> None:
    async def main() -> None:
        async with serving(home / "ca") as (port, renewable), dialled(port, check_identity(home / "b")) as open_call:
            assert await open_call(b"", timeout=10) == b"b"
            made = renew_authority(home / "ca")
            assert made.linked
            assert made.sites == ("a", "b")
            assert not_yet_signed(home / "ca") == ["a", "b"]
            reload(home / "ca", renewable)
            for site in "ab":
                assert await name_of(port, check_identity(home / site)) == site.encode(), "nobody has done anything yet"
            a = renewed(home, "a")
            assert fingerprint(load_certificates(a.ca_pem, "a")[0]) == made.fingerprint
            assert await name_of(port, a) == b"a", "new certificate, and the server's is still the old authority's"
            with pytest.raises(UsageError, match="b could no longer join"):
                finish_authority(home / "ca")
            with pytest.raises(UsageError, match="a renewal is already in progress"):
                renew_authority(home / "ca")
            b = renewed(home, "b")
            finish_authority(home / "ca")
            reload(home / "ca", renewable)
            for identity in (a, b):
                assert await name_of(port, identity) == identity.name.encode(), "both sides are the new authority's"
            assert await open_call(b"", timeout=10) == b"b", "over the connection that was open all the time"
            assert not (home / "ca" / "previous-ca.key").exists()
            with pytest.raises(UsageError, match="no renewal of the authority is in progress"):
                finish_authority(home / "ca")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_site_that_did_not_renew_is_shut_out_by_the_end_and_comes_back_by_telephone(home: Path) -> None:
    made = renew_authority(home / "ca")
    renewed(home, "a")
    finish_authority(home / "ca", force=True)

    async def main() -> None:
        async with serving(home / "ca") as (port, _):
            assert await name_of(port, check_identity(home / "a")) == b"a"
            with pytest.raises(grpc.aio.AioRpcError):
                await name_of(port, check_identity(home / "b"))
            signed = sign_request(home / "ca", renew(home / "b").request_path, renewal=True)
            with pytest.raises(Refused, match="which did not sign it"):
                install(home / "b", signed.certificate_path)
            b = install(home / "b", signed.certificate_path, authority=made.fingerprint)
            assert await name_of(port, b) == b"b"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_lost_authority_is_replaced_under_the_same_names(home: Path) -> None:
    """The key is gone; certificates are not: sites go on with them until each has a new one."""
    (home / "ca" / "ca.key").unlink()
    with pytest.raises(UsageError, match=r"ca\.key does not exist"):
        renew_authority(home / "ca")
    made = renew_authority(home / "ca", lost=True)
    assert not made.linked

    async def main() -> None:
        async with serving(home / "ca") as (port, renewable):
            for site in "ab":
                assert await name_of(port, check_identity(home / site)) == site.encode()
                signed = sign_request(home / "ca", renew(home / site).request_path, renewal=True)
                with pytest.raises(Refused, match=r"Ask the coordinator's .*by telephone"):
                    install(home / site, signed.certificate_path)
                with pytest.raises(Refused, match="Compare again"):
                    install(home / site, signed.certificate_path, authority="0" * 64)
                identity = install(home / site, signed.certificate_path, authority=made.fingerprint.upper())
                assert await name_of(port, identity) == site.encode()
            finish_authority(home / "ca")
            reload(home / "ca", renewable)
            for site in "ab":
                assert await name_of(port, check_identity(home / site)) == site.encode()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_authority_that_has_run_out_is_replaced_too(tmp_path: Path) -> None:
    long_ago = datetime.now(UTC) - 100 * DAY
    create_authority(tmp_path / "ca", [], days=99, now=long_ago)
    enrol(tmp_path / "a", "a")
    with pytest.raises(Refused, match=r"ca\.pem expired on .* replace it .*renew-authority .* --lost"):
        renew_authority(tmp_path / "ca")
    renew_authority(tmp_path / "ca", lost=True)
    load_server(tmp_path / "ca")  # signed anew: the old one's certificate had run out with it
    assert expiry_warnings(tmp_path / "ca") == []
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)


def test_a_link_of_a_stranger_convinces_nobody(home: Path) -> None:
    create_authority(home / "evil", [])
    renew_authority(home / "evil")  # its link is signed by an authority that a never trusted
    signed = sign_request(home / "evil", home / "a" / "site.csr")
    with pytest.raises(Refused, match="which did not sign it"):
        install(home / "a", signed.certificate_path)
    # Nor does the true link beside the stranger's certificate.
    renew_authority(home / "ca")
    link = (home / "ca" / "ca-link.pem").read_bytes()
    signed.certificate_path.write_bytes(signed.certificate_path.read_bytes() + link)
    with pytest.raises(Refused, match="which did not sign it"):
        install(home / "a", signed.certificate_path)
    assert check_identity(home / "a").name == "a"


def test_the_server_is_renewed_by_the_old_authority_while_the_new_one_takes_over(home: Path) -> None:
    renew_authority(home / "ca")
    reissue_server(home / "ca")

    async def main() -> None:
        async with serving(home / "ca") as (port, _):
            assert await name_of(port, check_identity(home / "a")) == b"a"
            assert await name_of(port, renewed(home, "b")) == b"b"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_authorities_that_are_trusted_no_more_stay_for_judging_what_they_signed(home: Path) -> None:
    [old] = load_certificates((home / "a" / "ca.pem").read_bytes(), "a")
    renew_authority(home / "ca")
    renewed(home, "a")
    assert old in load_certificates((home / "a" / "ca.pem").read_bytes(), "a")
    assert not (home / "a" / "earlier-ca.pem").exists()
    finish_authority(home / "ca", force=True)
    a = renewed(home, "a")
    assert old not in load_certificates(a.ca_pem, "a")
    assert load_certificates((home / "a" / "earlier-ca.pem").read_bytes(), "a") == [old]
