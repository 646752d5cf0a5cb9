"""predict, evaluate, report: commands on a site's own models, without a coordinator and without a network.

Each command imports polars and SciPy when it runs, because these imports are slow.
"""

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.errors import UsageError
from coreg_wire.terminal.command_line import need_extra
from coreg_wire.terminal.output import print_json
from site_agent.config.options import TABLE_HELP

if TYPE_CHECKING:
    from site_agent.models.store import ModelStore

SeparatorOption = Annotated[str | None, typer.Option("--separator", help=TABLE_HELP["separator"])]
DecimalOption = Annotated[str | None, typer.Option("--decimal", help=TABLE_HELP["decimal"])]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def predict(
    model: Annotated[Path, typer.Option("--model", help="The model file.")],
    data: Annotated[
        str | None,
        typer.Option("--data", help="New records with the model's columns: CSV, Parquet, or 'sqlite:PATH?SELECT …'."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="HOST:PORT on loopback: answer JSON rows at POST /predict instead. Needs the extra web."
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", help="The output file, CSV or Parquet. A new file has mode 0600; an existing one is replaced."
        ),
    ] = Path("predictions.csv"),
    id_column: Annotated[
        str | None, typer.Option("--id", help="A column to copy into the output; several as NAME+NAME.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            help="Add columns low and high: an interval for this percentage of new labels, for example 90.",
        ),
    ] = None,
    warn_above: Annotated[
        float,
        typer.Option(
            "--warn-above",
            min=0,
            max=100,
            help="Warn if more than this percentage of a column's cells is outside the range of training.",
        ),
    ] = 5.0,
    separator: SeparatorOption = None,
    decimal: DecimalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict new records with a model of this site. No coordinator and no network are used.

    Standard error reports unknown texts, missing cells, numbers outside the range of training, and unused columns. --json
    lists them by column.
    """
    from site_agent.data.drift import look
    from site_agent.data.notation import notation_of
    from site_agent.data.sources import files_of, source_of
    from site_agent.data.tables import read_table
    from site_agent.models.file import load_model
    from site_agent.models.writer import check_predictions, write_predictions

    if (data is None) == (listen is None):
        raise UsageError("give --data, the table to predict; or --listen HOST:PORT, to answer requests.")
    if listen is not None:
        need_extra("web", "starlette", "uvicorn")
        from site_agent.service.prediction_server import serve as answer

        answer(load_model(model), listen, None if interval is None else interval / 100.0)
        return
    assert data is not None
    source = source_of(data)
    check_predictions(output, read=files_of(source))
    loaded = load_model(model)
    column = "prediction" if loaded.probability is None else "probability"
    check_predictions(output, id_column, column)
    table = read_table(source, na_values=loaded.preprocessing.na_values, notation=notation_of(separator, decimal))
    predictions = loaded.predict(table)
    table = table if id_column is None else table.with_id(id_column)
    ids = None if id_column is None else table.ids(id_column)
    ends: dict[str, Any] = {}
    if interval is not None:
        ends["low"], ends["high"] = loaded.interval(table, interval / 100.0)
    write_predictions(output, predictions, ids=ids, id_column=id_column, column=column, beside=ends)
    seen = look(loaded.preprocessing, table, warn_above / 100.0, named=(loaded.target, id_column or ""))
    notes = (*table.notes, *table.doubts(loaded.preprocessing.sources, id_column), *seen.notes)
    if loaded.target in table.columns and (~table.missing(loaded.target)).sum() >= 2:  # an error needs two
        command = f"coreg-agent evaluate --model {model} --data {shlex.quote(data)}"
        notes = (
            *notes,
            f"{table.source} has a column {loaded.target!r}. To compare it with the predictions, if training has not seen these "
            f"rows: {command}",
        )
    if id_column is None:
        notes = (
            *notes,
            f"{output} has no ids: its rows are in the order of {table.source}. Give --id NAME to copy a column",
        )
    if as_json:
        fields = {"event": "predicted", "rows": len(predictions), "output": str(output), "notes": notes}
        print_json({**fields, **seen.fields()})
    else:
        for text in notes:
            typer.echo(text, err=True)
        typer.echo(f"{len(predictions)} predictions of {loaded.target} in {output}")


def evaluate(
    model: Annotated[
        list[Path], typer.Option("--model", help="A model file; repeatable. The first model is the baseline.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", help="Labelled records that no model was trained on: CSV, Parquet, or 'sqlite:PATH?SELECT …'."
        ),
    ],
    scores: Annotated[
        Path | None,
        typer.Option("--scores", help="Also compare scores that the sites made together of these records; needs --id."),
    ] = None,
    id_column: Annotated[
        str, typer.Option("--id", help="The column that matches the scores to the records, as for `score`.")
    ] = "",
    separator: SeparatorOption = None,
    decimal: DecimalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare models of this site on its own labelled records. No data leaves the machine.

    Errors are compared with the first model's row by row, so small differences are visible (s.e.: standard error).
    """
    from site_agent.data.notation import notation_of
    from site_agent.data.sources import source_of
    from site_agent.models.evaluate import evaluate, lines

    if (scores is None) != (not id_column):
        raise UsageError("--scores and --id belong together: the id matches the scores to the records.")
    found = evaluate(model, source_of(data), scores, id_column, notation_of(separator, decimal))
    if as_json:
        rows = [
            {"model": name, "mean_absolute": found.mean_absolute[name], "rmse": error.rmse}
            | {"standard_error": error.standard_error, "paired": None if beside is None else asdict(beside)}
            | found.quality(name)
            for name, (error, beside) in found.models.items()
        ]
        print_json(
            {"event": "evaluated", "target": found.target, "rows": found.rows, "models": rows, "notes": found.notes}
        )
        return
    for text in found.notes:
        typer.echo(text, err=True)
    typer.echo(f"root mean square error of {found.target} on {found.rows} rows, ± one standard error")
    for line in lines(found):
        typer.echo(line)


def report(
    model: Annotated[list[Path], typer.Option("--model", help="A model of this site; repeatable, one for each run.")],
    as_json: JsonOption = False,
) -> None:
    """Show whether joining pays for this site. It compares the errors on the site's own left-out labels.

    A run has findings if its objective was additive, or if its plan had a path of couplings (agreement). Each run is compared
    with its own local model. The errors are at labels that neither the model nor a choice about it saw.
    """
    from site_agent.models import findings

    runs = findings.report(model).items()
    if as_json:
        found = [
            {"run": each.run, "model": str(path), "target": each.target, **(each.found or {})}
            | {"recommendation": findings.recommended(each.found or {})}
            for path, each in runs
        ]
        print_json({"event": "report", "runs": found})
        return
    typer.echo("\n\n".join(findings.told_of(*each) for each in runs))


app = typer.Typer(help="List, choose and remove the models of a serving agent.", no_args_is_help=True)
FileOption = Annotated[Path, typer.Option("--config", envvar="COREG_CONFIG", readable=False, help="agent.toml.")]


def _store(config: Path) -> "ModelStore":
    from site_agent.config.settings import read_settings
    from site_agent.models.store import ModelStore

    settings = read_settings(config, {})
    return ModelStore("", settings.models, settings.keep_models)


@app.command("list")
def list_models(config: FileOption = Path("agent.toml"), as_json: JsonOption = False) -> None:
    """List this agent's models by study. A star marks the current run (models/STUDY/current)."""
    found = list(_store(config).manifests())
    if not found and not as_json:
        typer.echo(f"no models yet in {_store(config).folder}: a run that ends well writes them")
    for manifest in found:
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
def use(
    study: Annotated[str, typer.Argument(help="The name of a study, as in `coreg-agent models list`.")],
    run: Annotated[str, typer.Argument(help="A run of it, or a prefix of its name.")],
    config: FileOption = Path("agent.toml"),
) -> None:
    """Make a run the current one of its study, for example an earlier one."""
    typer.echo(f"{study}: {_store(config).use(study, run)} is the current run")


@app.command()
def prune(
    study: Annotated[str, typer.Argument(help="The name of a study, as in `coreg-agent models list`.")],
    config: FileOption = Path("agent.toml"),
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Latest runs to keep, beside the current one; 0 removes all.")
    ] = 0,
) -> None:
    """Remove the models of a study from this machine. The ledger keeps its entries."""
    gone = _store(config).prune(study, keep)
    kept = " and ".join(["the current one", *[f"the latest {keep} beside it"] * (keep > 0)])
    typer.echo(f"{study}: {len(gone)} runs removed" + (f" ({', '.join(gone)})" if gone else f". Kept: {kept}"))


COMMANDS: tuple[Callable[..., None], ...] = (predict, evaluate, report)
