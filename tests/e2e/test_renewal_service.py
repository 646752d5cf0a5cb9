"""A month in which everything runs out: authority and sites renewed under `serve`, and no session ended; keys are encrypted."""

import signal

import pytest
from federation import SITES, until, well
from standing import standing

from coordinator.authority.pki import sign_request
from site_agent.identity.identity import install, renew

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_an_authority_is_replaced_under_a_standing_federation(tmp_path):
    with standing(tmp_path) as fed:
        passphrase = tmp_path / "passphrase"
        passphrase.write_text("correct horse battery\n")
        passphrase.chmod(0o600)
        secret = {"COREG_PASSPHRASE_FILE": str(passphrase)}
        coordinator = fed.serve(env=secret)
        agents = {site: fed.stays(site) for site in SITES}
        until(lambda: all(fed.logged(site, "connected") for site in SITES))

        told = well("coreg-coordinator", "renew-authority", "co", cwd=tmp_path)
        assert "fingerprint" in told
        coordinator.send_signal(signal.SIGHUP)
        until(lambda: len(fed.logged("coordinator", "reloaded")) == 1)
        for site in ("north", "south"):
            signed = sign_request(tmp_path / "co", renew(tmp_path / site).request_path, renewal=True)
            install(tmp_path / site, signed.certificate_path)
        well("coreg-agent", "enroll", "--identity", "west", "--renew", "--new-key", cwd=tmp_path)
        well("coreg-coordinator", "sign", "--identity", "co", "--renew", "west/site.csr", cwd=tmp_path)
        # West's key is new: its peers see that the one they pinned has signed it, and pin it.
        words = ("coreg-agent", "peers", "--identity", "north", "--policy", "policy.toml")
        assert "west: a new key, signed by the one that is pinned" in well(*words, "west/site.csr", cwd=tmp_path)
        well("coreg-agent", "enroll", "--identity", "west", "--install", "co/west.pem", cwd=tmp_path)
        pinned = well(
            "coreg-agent", "peers", "--pin", "--identity", "north", *(f"co/{s}.pem" for s in SITES), cwd=tmp_path
        )
        (tmp_path / "either.toml").write_text(pinned)
        well("coreg-coordinator", "renew-authority", "co", "--finish", cwd=tmp_path)
        coordinator.send_signal(signal.SIGHUP)
        for agent in agents.values():
            agent.send_signal(signal.SIGHUP)
        until(lambda: len(fed.logged("coordinator", "reloaded")) == 2)
        until(lambda: all(fed.logged(site, "reloaded") for site in SITES))
        assert not fed.logged("coordinator", "session_ended"), "whoever was connected still is"

        # From now on only what was renewed opens anything; and the keys of the coordinator are encrypted.
        well("coreg-coordinator", "encrypt-keys", "co", cwd=tmp_path, env=secret)
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(30) == 0
        fed.serve(env=secret)
        fed.study("month")
        run = fed.submit("month")
        until(lambda: fed.over(run))
        assert fed.run_of(run)["stop"] == "CONVERGED"
        assert [agent.poll() for agent in agents.values()] == [None, None, None]
