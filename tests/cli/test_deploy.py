"""deploy/: what stands in files there is what the programs take, and what an orchestrator takes."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from coordinator.cli.app import app as coordinator_app
from coreg_core.outcomes import Outcome
from site_agent.cli.app import app as agent_app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAMS = {
    "coreg-coordinator": get_command(coordinator_app),
    "coreg-agent": get_command(agent_app),
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*/statefulset.yaml"))


def resources():
    for path in MANIFESTS:
        for resource in yaml.safe_load_all(path.read_text()):
            yield pytest.param(resource, id=f"{path.parent.name}: {resource['kind']}")


def containers():
    """(where, command) of everything that runs."""
    for case in resources():
        [resource] = case.values
        pod = resource["spec"].get("template", {}).get("spec", {})
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            yield f"{case.id} {container['name']}", container["command"]
            for probe in ("readinessProbe", "livenessProbe"):
                if "exec" in container.get(probe, {}):
                    yield f"{case.id} {probe}", container[probe]["exec"]["command"]
    for name, service in yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"].items():
        yield f"compose {name}", service["command"]
        if "healthcheck" in service:
            yield f"compose {name} health", service["healthcheck"]["test"][1:]
    for path in (DEPLOY / "systemd").glob("*.service"):
        [started] = [
            line for line in path.read_text().splitlines() if line.startswith("ExecStart=")
        ]
        yield (
            path.name,
            shlex.split(started.removeprefix("ExecStart=").replace("/opt/coreg/bin/", "")),
        )


@pytest.mark.parametrize("resource", [*resources()])
def test_kubernetes_takes_every_manifest(resource):
    """`validate` raises for a field that Kubernetes does not know."""
    kubernetes_validate.validate(resource, "1.27", strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_a_kustomization_lists_its_folder_and_names_the_image_of_this_release(manifest):
    kustomization = yaml.safe_load((manifest.parent / "kustomization.yaml").read_text())
    assert {manifest.parent / name for name in kustomization["resources"]} == {manifest}
    resources = [*yaml.safe_load_all(manifest.read_text())]
    assert {resource["metadata"]["namespace"] for resource in resources} == {
        kustomization["namespace"]
    }
    [image] = kustomization["images"]
    assert f"{image['name']}:{image['newTag']}" == f"coreg:{VERSION}"


def test_every_file_names_this_release():
    """The steps of CONTRIBUTING.md, "Release"."""
    named = {
        "CITATION.cff": f"version: {VERSION}",
        "README.md": f"Release {VERSION} is",
        "docs/index.md": f"Release {VERSION} is",
        "docs/concepts/comparison.md": f"Release {VERSION} is",
        "docs/how-to/install.md": f"coreg_federation-{VERSION}-py3-none-any.whl",
        "CHANGELOG.md": f"## [{VERSION}] - 20",
        "deploy/Dockerfile": f'version="{VERSION}"',
        "deploy/compose.yml": f"${{COREG_IMAGE:-coreg:{VERSION}}}",
        "docs/how-to/operate-a-coordinator.md": f"coreg:{VERSION}",
    }
    named |= {str(path.relative_to(ROOT)): f"image: coreg:{VERSION}" for path in MANIFESTS}
    assert [name for name, text in named.items() if text not in (ROOT / name).read_text()] == []
    for name in named:
        others = set(re.findall(r"coreg:(\d[\d.]+\d)", (ROOT / name).read_text())) - {VERSION}
        assert not others, f"{name} names {others}"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f"## [{VERSION}] - {cited['date-released']}" in (ROOT / "CHANGELOG.md").read_text()
    assert len(cited["references"]) == 5, "the papers"


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, id=n) for n, w in containers() if w[0] in PROGRAMS and w[-1] != "--version"],
)
def test_every_command_is_one_of_ours_with_its_options(words):
    command = PROGRAMS[words[0]].commands[words[1]]
    command.make_context(words[1], list(words[2:]))


def test_nothing_runs_as_root_or_writes_beside_its_volumes():
    for case in resources():
        [resource] = case.values
        if resource["kind"] != "StatefulSet":
            continue
        pod = resource["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        assert resource["spec"]["replicas"] == 1, "a lock keeps the second out"
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_deployment_has_the_port_of_the_sites_and_the_port_where_they_join():
    ports = [7600, 7601]
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    assert compose["coordinator"]["ports"] == ["7600-7601:7600-7601"], (
        "invitations name the port, so it is not mapped"
    )
    assert re.search(r"^EXPOSE 7600 7601$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    manifest = (DEPLOY / "kubernetes" / "coordinator" / "statefulset.yaml").read_text()
    spec = {each["kind"]: each["spec"] for each in yaml.safe_load_all(manifest)}
    assert [each["port"] for each in spec["Service"]["ports"]] == ports
    assert [each["port"] for each in spec["NetworkPolicy"]["ingress"][0]["ports"]] == ports
    container = spec["StatefulSet"]["template"]["spec"]["containers"][0]
    assert [each["containerPort"] for each in container["ports"]] == ports


def test_the_first_start_of_a_pod_makes_the_authority_and_later_ones_keep_it(tmp_path):
    """The step of the coordinator's manifest, in a shell, with folders in place of the volumes."""
    resources = yaml.safe_load_all(
        (DEPLOY / "kubernetes" / "coordinator" / "statefulset.yaml").read_text()
    )
    [pod] = [
        each["spec"]["template"]["spec"] for each in resources if each["kind"] == "StatefulSet"
    ]
    shell, options, script = pod["initContainers"][0]["command"]
    state = tmp_path / "state"
    mounted = tmp_path / "federation"
    state.mkdir()
    mounted.mkdir()
    (mounted / "host").write_text("fed.example.org")
    text = '[federation]\nname = "k"\nsites = ["a", "b"]\n[model]\nobjective = "additive"\n'
    (mounted / "federation.toml").write_text(text)
    script = script.replace("/federation/", f"{mounted}/").replace("/state", f"{state}")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for _ in range(2):
        done = subprocess.run(
            [shell, options, script], capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == 0, "an invitation is no line of a log"
        assert done.stdout == "", "an invitation is no line of a log"
        found = {path.name: path.read_bytes() for path in (state / "fed" / "invitations").iterdir()}
        assert set(found) == {"a", "b"}
        assert b"coreg://fed.example.org:7600/a#" in found["a"]
        (mounted / "host").write_text("other.example.org")


@pytest.mark.parametrize(
    "path", [ROOT / "docker-compose.yml", DEPLOY / "compose.yml"], ids=lambda p: p.name
)
def test_one_image_is_built_once_and_every_service_is_locked(path):
    services = yaml.safe_load(path.read_text())["services"]
    assert sum("build" in service for service in services.values()) == 1
    for name, service in services.items():
        if name != "image":  # built, and never run
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name


def test_no_service_of_the_demonstration_pulls_its_image():
    """Compose asked a registry for coreg-federation, where a stranger can publish that name."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {service.get("pull_policy") for service in services.values()} == {"never"}


def test_prometheus_scrapes_the_coordinator():
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert scraped["rule_files"] == ["alerts.yml"]
    [job] = scraped["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    command = services["coordinator"]["command"]
    assert command[command.index("--metrics") + 1] == target
    assert services["prometheus"]["network_mode"] == "service:coordinator"


def test_the_alert_of_a_run_without_a_model_is_of_no_good_outcome():
    patterns = set(
        re.findall(
            r'coreg_runs_finished_total\{stop!~"([^"]+)"\}', (DEPLOY / "alerts.yml").read_text()
        )
    )
    [quiet] = patterns
    silent = {outcome for outcome in Outcome if re.fullmatch(quiet, outcome.name)}
    assert silent == {outcome for outcome in Outcome if outcome.good} | {
        Outcome.CANCELLED,
        Outcome.REHEARSED,
    }


def test_the_image_is_built_from_every_package_of_the_wheel():
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    folders = {
        package.partition("/")[0] for package in hatch["build"]["targets"]["wheel"]["packages"]
    }
    copied = set(re.findall(r"^COPY (\w+) \1$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert folders <= copied
    assert folders <= allowed
