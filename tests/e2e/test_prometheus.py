"""Alert rules and the dashboard before a real Prometheus, which scrapes a federation at work: every query is executed.

Grafana itself is not here: what is tested is that its dashboard is well made, and that each query of it finds something.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from browser import needed
from federation import ENDLESS, ROOT, SITES, federation, until
from test_serve import free_port

pytestmark = pytest.mark.e2e

DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
ALERTS = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
PANELS = {
    (panel["title"], target["refId"]): target["expr"].replace("$study", ".*")  # Grafana's "All"
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}


class Prometheus:
    """Debian's, with the rules as they are shipped; on loopback, in a folder of its own, ended by its process."""

    def __init__(self, folder, program, **jobs):
        self.port, self.log = free_port(), folder / "prometheus.log"
        shipped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        (folder / "alerts.yml").write_text((DEPLOY / "alerts.yml").read_text())
        shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        assert {job["job_name"] for job in shipped["scrape_configs"]} == {*jobs}
        for job in shipped["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in jobs[job["job_name"]]]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(shipped))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                 f"--web.listen-address=127.0.0.1:{self.port}"], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def _get(self, path, **parameters):
        address = f"http://127.0.0.1:{self.port}/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=200) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=200) as answer:
                return answer.status == 200
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def query(self, expression):
        """Labels and value of whatever it finds now."""
        return [
            (each["metric"], float(each["value"][1])) for each in self._get("api/v1/query", query=expression)["result"]
        ]

    def value(self, expression):
        [(_, value)] = self.query(expression)
        return value

    def rules(self):
        """Each alert as Prometheus sees it: (health, state)."""
        groups = self._get("api/v1/rules")["groups"]
        return {rule["name"]: (rule["health"], rule["state"]) for group in groups for rule in group["rules"]}

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)


def soon_none(left, seconds=600):
    """Wait until nothing is left; not in a hurry, since Prometheus looks once a second."""
    end = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < end, found
        time.sleep(0.25)


def test_promtool_finds_nothing_wrong_with_the_shipped_files():
    (promtool,) = needed("promtool")
    for words in (
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
    ):
        done = subprocess.run([promtool, *words], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_the_one_that_its_list_of_panels_makes():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "dashboard.py", "--check"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len({*places}) == len(places) == len({panel["id"] for panel in DASHBOARD["panels"]})


def test_every_query_finds_something_in_a_federation_at_work(tmp_path):
    prometheus, _ = needed("prometheus", "promtool")
    numbers = free_port()
    with federation(tmp_path, round=10, stall=10) as fed:
        watching = Prometheus(Path(tmp_path), prometheus, coreg=[numbers])
        try:
            fed.serve("--metrics", f"127.0.0.1:{numbers}")
            agents = fed.all_stay()
            fed.study("monthly")
            fed.study("long", **ENDLESS)
            early = fed.submit("monthly")
            until(lambda: fed.over(early))
            until(watching.ready)
            live = fed.submit("long")
            until(lambda: fed.answered(live) > 20)
            soon_none(lambda: [name for name, expression in PANELS.items() if not watching.query(expression)])
            # What it found is what happened.
            told = fed.run_of(early)
            assert watching.value('coreg_rounds_total{study="monthly"}') == told["rounds"]
            assert watching.value('coreg_runs_finished_total{study="monthly", stop="CONVERGED"}') == 1
            assert watching.value("sum(coreg_site_connected)") == len(SITES)
            assert watching.value('coreg_site_certificate_not_after_seconds{site="west"}') - time.time() > 300 * 86400
            # Every rule was evaluated, and nothing is wrong: none is on its way to fire.
            soon_none(lambda: [name for name, (health, _) in watching.rules().items() if health != "ok"])
            assert {*watching.rules()} == {*ALERTS}
            assert {name for name, (_, state) in watching.rules().items() if state != "inactive"} == set()
            # A site is lost in the middle of a run: what watches it says so.
            agents["west"].kill()
            said = {
                "CoregSiteAway": {"pending"},
                "CoregRunStalled": {"firing"},
            }
            soon_none(
                lambda: {name for name, (_, state) in watching.rules().items() if state not in said.get(name, {state})}
            )
            assert [labels["site"] for labels, _ in watching.query(ALERTS["CoregSiteAway"])] == ["west"]
        finally:
            watching.end()
