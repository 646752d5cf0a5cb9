"""An agent that stays ends on SIGTERM, also where the signal comes in the very moment in which its session breaks."""

import os
import signal
import threading

from coreg_wire.terminal.logs import make_log
from site_agent.service import app
from site_agent.service.daemon import Service


def test_a_signal_while_the_session_breaks_is_not_forgotten(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("id,a,y\n1,1,1\n2,2,\n")
    (tmp_path / "agent.toml").write_text(
        'coordinator = "127.0.0.1:1"\nidentity = "i"\n[data.p]\ntable = "t.csv"\ntarget = "y"\nid = "id"\n'
    )
    monkeypatch.setattr(app, "INSIST", 0.2)
    dialled, told = threading.Event(), Service.tell

    def telling(self):
        told(self)
        if "trying again" in self.waiting and not dialled.is_set():
            dialled.set()
            self.connected_since = "until a moment ago"  # as the session's end leaves it, until it has been seen to
            threading.Timer(0.1, setattr, (self, "connected_since", None)).start()
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Service, "tell", telling)
    given = app.Given(tmp_path / "agent.toml", None, insecure=True, name="north")
    watchdog = threading.Timer(20.0, os.kill, (os.getpid(), signal.SIGINT))  # a second signal ends it in any case
    watchdog.start()
    try:
        assert app.serve(given, make_log(as_json=True)) == 0
        assert watchdog.is_alive(), "it was ended by a second signal"
    finally:
        watchdog.cancel()
    assert dialled.is_set()
