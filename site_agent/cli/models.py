"""predict, evaluate, report: what an organisation does with its models by itself. No coordinator, no network.

Parses, calls a room, and prints; polars and SciPy are imported when a command runs.
"""

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_wire.terminal.output import print_json

if TYPE_CHECKING:
    from site_agent.models.store import ModelStore

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]


def predict(
    model: Annotated[Path, typer.Option("--model", help="The model file.")],
    data: Annotated[
        str,
        typer.Option("--data", help="New records with the model's columns: CSV, Parquet, or 'sqlite:PATH?SELECT …'."),
    ],
    output: Annotated[
        Path, typer.Option("--output", help="CSV or Parquet. A new file is for its owner alone (mode 0600).")
    ] = Path("predictions.csv"),
    id_column: Annotated[str | None, typer.Option("--id", help="A column to copy beside each prediction.")] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", help="Also low and high, between which so many of 100 new labels should lie: 90."),
    ] = None,
    warn_above: Annotated[
        float,
        typer.Option(
            "--warn-above",
            min=0,
            max=100,
            help="Warn where more of 100 cells of a column are not as training saw them.",
        ),
    ] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Score new records inside the organisation; needs no coordinator and no network.

    What the model never saw (unknown texts, missing cells, numbers beyond those of training) is counted on standard error, and so
    are columns that it does not use. --json has it by column.
    """
    from site_agent.data.drift import look
    from site_agent.data.sources import source_of
    from site_agent.data.tables import read_table
    from site_agent.models.file import check_predictions, load_model, write_predictions

    check_predictions(output, id_column)
    loaded = load_model(model)
    table = read_table(source_of(data), na_values=loaded.preprocessing.na_values)
    predictions = loaded.predict(table)
    ids = None if id_column is None else table.ids(id_column)
    ends: dict[str, Any] = {}
    if interval is not None:
        ends["low"], ends["high"] = loaded.interval(table, interval / 100.0)
    write_predictions(output, predictions, ids=ids, id_column=id_column, beside=ends)
    seen = look(loaded.preprocessing, table, warn_above / 100.0, named=(loaded.target, id_column or ""))
    notes = (*table.notes, *loaded.preprocessing.notes_on(table), *seen.notes)
    if loaded.target in table.columns and table.frame[loaded.target].count() >= 2:  # fewer make no error
        could = f"coreg-agent evaluate --model {model} --data {shlex.quote(data)}"
        notes = (
            *notes,
            f"{table.source} has a column {loaded.target!r}: `{could}` says how far predictions are from it",
        )
    if as_json:
        told = {"event": "predicted", "rows": len(predictions), "output": str(output), "notes": notes}
        print_json({**told, **seen.fields()})
    else:
        for text in notes:
            typer.echo(text, err=True)
        typer.echo(f"{len(predictions)} predictions of {loaded.target} in {output}")


def evaluate(
    model: Annotated[
        list[Path], typer.Option("--model", help="A model file; repeatable, the first is the one compared with.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", help="Labelled records that no model has seen: CSV, Parquet, or 'sqlite:PATH?SELECT …'."
        ),
    ],
    plot: Annotated[
        Path | None, typer.Option("--plot", help="The errors and their intervals as a picture (SVG).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Errors of this site's models on its own labelled records, with intervals, beside each other; nothing leaves.

    Intervals hold 95 of 100, from drawing rows again, the same for every model, so that small differences of two models show.
    """
    from site_agent.data.sources import source_of
    from site_agent.models.evaluate import evaluate, lines, picture

    found = evaluate(model, source_of(data))
    if plot is not None:
        picture(found, plot)
    if as_json:
        rows = [
            {"model": name, "mean_absolute": found.mean_absolute[name], **asdict(compared)}
            for name, compared in found.models.items()
        ]
        print_json(
            {"event": "evaluated", "target": found.target, "rows": found.rows, "models": rows, "notes": found.notes}
        )
        return
    for text in found.notes:
        typer.echo(text, err=True)
    typer.echo(f"root mean square error of {found.target} on {found.rows} rows, with 95 % intervals")
    for line in lines(found):
        typer.echo(line)
    if plot is not None:
        typer.echo(f"picture: {plot}")


def report(
    model: Annotated[
        list[Path], typer.Option("--model", help="A model of this site's; repeatable, for its runs' findings.")
    ],
    plot: Annotated[Path | None, typer.Option("--plot", help="The errors as a picture (SVG).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show whether joining pays for this site: the errors on its own left-out labels, and a recommendation for each run.

    A run has findings if its plan had a path of couplings (agreement) or forecast = true (additive). Each run is compared
    with its own local model. The errors are from nested folds: neither the model nor a choice about it saw these labels.
    """
    from site_agent.models.findings import sentences
    from site_agent.models.report import picture
    from site_agent.models.report import report as reported

    runs = reported(model)
    if plot is not None:
        picture(runs, plot)
    if as_json:
        told = [
            {"run": each.run, "model": str(each.model), "target": each.target, **each.found}
            | {"recommendation": sentences(each.found)}
            for each in runs
        ]
        print_json({"event": "report", "runs": told})
        return
    typer.echo("\n\n".join("\n".join(each.lines) for each in runs))
    if plot is not None:
        typer.echo(f"picture: {plot}")


app = typer.Typer(help="The models that a serving agent keeps.", no_args_is_help=True)
FileOption = Annotated[Path, typer.Option("--config", envvar="COREG_CONFIG", help="agent.toml.")]


def _store(config: Path) -> "ModelStore":
    from site_agent.config.settings import read_settings
    from site_agent.models.store import ModelStore

    settings = read_settings(config, {})
    return ModelStore("", settings.models, settings.keep_models)


@app.command("list")
def list_models(config: FileOption = Path("agent.toml"), as_json: JsonOption = False) -> None:
    """List the models that this agent keeps, by study; a star marks the one in use (models/STUDY/current)."""
    for manifest in _store(config).manifests():
        if as_json:
            print_json(manifest)
            continue
        mark = "*" if manifest["current"] else " "
        typer.echo(
            f"{mark} {manifest['study'] or 'unnamed'}  {manifest['run']}  {manifest['at']}  {manifest['stop'].lower()}"
        )
        for model in manifest["models"]:
            typer.echo(f"    {Path(manifest['folder']) / model['file']}")


@app.command()
def prune(
    study: Annotated[str, typer.Argument(help="A study, as `coreg-agent models list` names it.")],
    config: FileOption = Path("agent.toml"),
    keep: Annotated[int, typer.Option("--keep", min=0, help="Keep this many of its latest runs.")] = 0,
) -> None:
    """Remove the models of a study from this machine. The ledger keeps what left it."""
    gone = _store(config).prune(study, keep)
    typer.echo(f"{study}: {len(gone)} runs removed" + (f" ({', '.join(gone)})" if gone else ""))


COMMANDS: tuple[Callable[..., None], ...] = (predict, evaluate, report)
