"""A site's folder for tests of `coreg-agent check`, and its verdicts."""

import json

import numpy as np
from agent_files import agent, write

TABLE = ("--data", "north.csv", "--target", "y", "--id", "id")
INSECURE = ("--insecure", "--name", "north", "--coordinator", "127.0.0.1:9")


def made(folder):
    """The folder with a table of 9 labelled rows and 11 others, and a policy."""
    rng = np.random.default_rng(0)
    rows = [f"{i},{a:.6f},{b:.6f},{a + b if i < 9 else ''}" for i, (a, b) in enumerate(rng.normal(size=(20, 2)))]
    write(folder, "\n".join(["id,u,v,y", *rows, ""]), "north.csv")
    write(folder, 'aggregation = "plaintext"\n', "policy.toml")
    return folder


def check(*words):
    """The exit code, and the verdicts: true, false, or None for what was skipped."""
    done = agent("check", *words, "--json")
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]
