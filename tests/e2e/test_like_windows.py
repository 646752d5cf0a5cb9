"""Both programs without what Python lacks on Windows: modes of files, folders that sync, signals in the event loop.

This is no Windows: its file locks, access lists and paths are not here (docs/how-to/install.md says what was tested).
"""

import json

import pytest
from federation import SITES, federation

pytestmark = pytest.mark.e2e

LIKE_WINDOWS = """
import asyncio, os, signal, sys

class Without:
    def __init__(self, module, names):
        self.module, self.names = module, names
    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(name)
        return getattr(self.module, name)

like = {
    "os": Without(os, {"fchmod", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "geteuid", "getuid", "kill", "fork"}),
    "signal": Without(signal, {"SIGHUP", "SIGUSR1", "SIGKILL"}),
}
for name, module in list(sys.modules.items()):  # ours alone: other libraries have code of their own for Windows
    if name.partition(".")[0] in {"coordinator", "site_agent", "coreg_core", "coreg_wire"}:
        vars(module).update({known: less for known, less in like.items() if known in vars(module)})
def no_signals(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = no_signals
"""


def test_a_run_and_predictions_on_a_system_like_windows(tmp_path):
    with federation(tmp_path) as fed:
        for key in (*tmp_path.glob("*/site.key"), *tmp_path.glob("co/*.key")):
            key.chmod(0o666)  # the mode of every file there
        fed.study("one")
        coordinator = fed.run("one", first=LIKE_WINDOWS)
        agents = [fed.joins(site, first=LIKE_WINDOWS) for site in SITES]
        assert coordinator.wait() == 0, fed.last("coordinator")
        assert [agent.wait() for agent in agents] == [0, 0, 0], fed.last("north")
        assert fed.models() == fed.undisturbed()
        for name, arguments in {
            "check": ("--data", "north.csv", "--target", "y", "--id", "id", "--identity", "north", "--json"),
            "predict": ("--model", fed.model("north"), "--data", "north.csv", "--id", "id"),
        }.items():
            command = fed.start(name, "coreg-agent", name, *arguments, first=LIKE_WINDOWS)
            assert command.wait() == 0, fed.said(name)
        checks = [json.loads(line)["check"] for line in fed.said("check").splitlines() if line.startswith("{")]
        assert {"table", "identity", "models"} <= {*checks}
