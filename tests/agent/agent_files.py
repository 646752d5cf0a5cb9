"""A site's files for tests, in few words: tables, how they are read, and commands on them."""

from typer.testing import CliRunner

from site_agent.cli.app import app
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.site_tables import load_site_tables
from site_agent.data.sources import Faults
from site_agent.data.tables import read_table


def write(folder, content, name="t.csv"):
    path = folder / name
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def table(folder, content, name="new.csv"):
    return read_table(write(folder, content, name))


def inputs(source, target="y", **options):
    return Inputs(**{"table": source, "target": target, "id": "id", **options})


def prepared(source, target="y", **options):
    return prepare(inputs(source, target, **options))


def site_table(folder, content, **options):
    return tables_of(inputs(write(folder, content), **options))


def tables_of(source):
    faults = Faults()
    found = load_site_tables(source, None, faults)
    faults.raise_any()
    return found


def fitted(folder, content, *, drop=(), **options):
    """The preprocessing of a table, and its rows."""
    found = site_table(folder, content, drop=drop)
    return Preprocessing.fit(found.labelled, found.unlabelled, **options), found


def agent(*words):
    """`coreg-agent` in this process; what it raises comes through."""
    return CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
