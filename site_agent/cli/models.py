"""predict, evaluate, report, models: commands on a site's own models, without a coordinator and
without a network.

Each command imports polars and SciPy when it runs, because these imports are slow.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.errors import UsageError
from coreg_wire.terminal.command_line import need_extra, print_json
from coreg_wire.terminal.text import echo
from site_agent.config.options import TABLE_HELP, ConfigOption, JsonOption

if TYPE_CHECKING:
    from site_agent.data.tables import Table
    from site_agent.models.file import ModelFile
    from site_agent.models.store import ModelStore

QueryOption = Annotated[str | None, typer.Option(help=TABLE_HELP["query"])]
SeparatorOption = Annotated[str | None, typer.Option(help=TABLE_HELP["separator"])]
PlotOption = Annotated[
    Path | None, typer.Option(help="Also draw: .svg, .png or .pdf (extra plot).")
]
DecimalOption = Annotated[str | None, typer.Option(help=TABLE_HELP["decimal"])]


def _store(config: Path | None) -> "ModelStore":
    from site_agent.config.settings import read_settings
    from site_agent.models.store import ModelStore

    return ModelStore("", read_settings(config, {}).models)


def predict(
    model: Annotated[
        Path | None,
        typer.Option(help="A model file [the one that the newest report advises]."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="New records: CSV, Parquet or a database, as for a training."),
    ] = None,
    query: QueryOption = None,
    listen: Annotated[
        str | None,
        typer.Option(help="HOST:PORT on loopback: answer POST /predict instead (extra web)."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            help=(
                "CSV or Parquet. A new file has mode 0600; only an earlier output of `predict` is"
                " replaced."
            ),
        ),
    ] = Path("predictions.csv"),
    id_column: Annotated[
        str | None, typer.Option("--id", help="A column to copy; several as NAME+NAME.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help=(
                "Add low and high: ends for this percentage of labels, such as 90 (joined models)."
            ),
        ),
    ] = None,
    contributions: Annotated[
        bool,
        typer.Option(
            "--contributions", help="Add each column's part of the prediction (linear models)."
        ),
    ] = False,
    separator: SeparatorOption = None,
    decimal: DecimalOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict new records with a model of this site. No coordinator and no network are used.

    Standard error reports columns that moved since training: unknown texts, missing cells, values
    outside the range.
    """
    from site_agent.config.settings import inputs_of
    from site_agent.data.sources import files_of
    from site_agent.data.tables import read_table
    from site_agent.models.batch import check_predictions, write_predictions
    from site_agent.models.file import load_model

    unused = (id_column, query, separator, decimal, contributions or None, as_json or None)
    _require_task(data, listen, interval, unused)
    file = _store(config).recommended() if model is None else model
    loaded = load_model(file)
    share = None if interval is None else interval / 100.0
    if data is None or listen is not None:
        need_extra("web", "starlette", "uvicorn")
        from site_agent.service.prediction_server import serve as answer

        answer(loaded, listen or "", share)
        return
    given = inputs_of({"data": data, "query": query, "separator": separator, "decimal": decimal})
    check_predictions(output, files_of(given.table))
    trained = loaded.preprocessing
    table = read_table(given.table, na_values=trained.na_values, notation=given.notation)
    column, predictions, beside = _predictions(loaded, table, share, contributions=contributions)
    ids = None if id_column is None else table.with_id(id_column).ids(id_column)
    write_predictions(
        output, predictions, ids=ids, id_column=id_column, column=column, beside=beside
    )
    notes = [*table.notes, *table.doubts(id_column), *trained.moved(table)]
    if id_column is None:
        notes.append(
            f"{output} has no ids, but the order of {table.source}. Give --id NAME to copy a column"
        )
    _predicted(file, loaded.target, len(predictions), output, notes, as_json=as_json)


def _predictions(
    model: "ModelFile", table: "Table", share: float | None, *, contributions: bool
) -> tuple[str, Any, dict[str, Any]]:
    """The name of the column, its predictions, and the columns beside it."""
    from site_agent.models.batch import as_columns
    from site_agent.models.explain import contributions as of_columns

    column = "prediction" if model.probability is None else "probability"
    predictions: Any = model.predict(table)
    beside: dict[str, Any] = {}
    if share is not None:
        beside["low"], beside["high"] = model.interval(table, share)
    if model.classes:
        column = "prediction"
        predictions, beside = as_columns(model.classes, predictions, predictions)
    if contributions:
        for name, values in of_columns(model, table).items():
            beside[f"contribution_{name}"] = values
    return column, predictions, beside


def _require_task(
    data: str | None, listen: str | None, interval: float | None, unused: tuple[Any, ...]
) -> None:
    """UsageError: the options name no table and no address, or both, or do not fit them."""
    if (data is None) == (listen is None):
        raise UsageError(
            "give --data, the table to predict; or --listen HOST:PORT, to answer requests."
        )
    if listen is not None and any(option is not None for option in unused):
        raise UsageError(
            "--listen takes --model, --interval and --config. Linear models answer with"
            " contributions."
        )
    if interval is not None and 0.0 < interval < 1.0:
        raise UsageError(
            f"--interval {interval:g}: a percentage. Do you mean --interval {100 * interval:g}?"
        )


def _predicted(
    file: Path, target: str, rows: int, output: Path, notes: list[str], *, as_json: bool
) -> None:
    if as_json:
        fields = {"model": str(file), "rows": rows, "output": str(output), "notes": notes}
        print_json({"event": "predicted", **fields})
        return
    for text in notes:
        echo(text, err=True)
    echo(f"{rows} predictions of {target or 'the target'} in {output} (model: {file})")


def evaluate(
    data: Annotated[str, typer.Option(help="Labelled records that no model was trained on.")],
    model: Annotated[
        list[Path] | None,
        typer.Option(help="Repeatable; the first is the baseline [newest run: local, joined]."),
    ] = None,
    plot: PlotOption = None,
    query: QueryOption = None,
    separator: SeparatorOption = None,
    decimal: DecimalOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare models of this site on its own labelled records. No data leaves the machine.

    Errors are compared with the first model's row by row, so small differences are visible (s.e.:
    standard error). The stability index says how far columns and predictions moved since training.
    """
    from site_agent.config.settings import inputs_of
    from site_agent.models.evaluate import evaluate, evaluated_lines

    if plot is not None:
        need_extra("plot", "matplotlib")
    given = inputs_of({"data": data, "query": query, "separator": separator, "decimal": decimal})
    result = evaluate(model or _store(config).local_and_joined(), given.table, given.notation)
    if plot is not None:
        from site_agent.models.picture import draw

        last = list(result.models.values())[-1]
        stability = last["stability"] or {}
        about = {"left_out": result.left_out, "columns_by": "stability", **stability}
        draw(plot, result.target, result.models, about)
    if as_json:
        fields = {"event": "evaluated", **vars(result)}
        del fields["left_out"]
        fields["models"] = [{"model": name, **errors} for name, errors in result.models.items()]
        print_json(fields)
        return
    for text in result.notes:
        echo(text, err=True)
    for line in evaluated_lines(result):
        echo(line)


def report(
    model: Annotated[
        list[Path] | None,
        typer.Option(help="Repeatable, one for each run [joined model of the newest run]."),
    ] = None,
    plot: PlotOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show whether joining pays for this site.

    It compares the errors on the site's own left-out labels.

    A run has findings if its objective was additive, or if its plan had a path of couplings
    (agreement). Each run is compared with its own local model. The errors are at labels that the
    models have not seen.
    """
    from site_agent.models.findings import Findings
    from site_agent.models.report import load_reports, summary_of
    from site_agent.models.store import MODEL

    runs = load_reports(model or [_store(config).newest() / MODEL]).items()
    if plot is not None:
        need_extra("plot", "matplotlib")
        if len(runs) > 1:
            raise UsageError("--plot draws one run. Name one model.")
        from site_agent.models.picture import draw

        [(_, shown)] = runs
        about = shown.findings or Findings()
        draw(plot, shown.target, about.shown, about.to_json())
    if as_json:
        print_json({"event": "report", "runs": [_run_json(path, model) for path, model in runs]})
        return
    echo("\n\n".join(summary_of(path, model) for path, model in runs))


def _run_json(path: Path, model: "ModelFile") -> dict[str, Any]:
    """The findings of a run, without its single labels."""
    from site_agent.models.findings import Findings
    from site_agent.models.report import recommended

    findings = model.findings or Findings()
    values = findings.to_json()
    values.pop("left_out", None)
    about = {"run": model.run, "model": str(path), "target": model.target}
    return {**about, **values, "recommendation": recommended(findings)}


def models(
    export: Annotated[
        Path | None,
        typer.Option(help="Write --model, or that of the newest run, in ONNX (extra onnx)."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The model file to export.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List this site's models and scores by study.

    `predict` and `report` use the newest run that converged.
    """
    store = _store(config)
    if export is not None:
        _export(store.recommended() if model is None else model, export, as_json=as_json)
        return
    if model is not None:
        raise UsageError("--model names the model to export. Give --export FILE.onnx too.")
    manifests = store.manifests()
    if not manifests and not as_json:
        echo(f"no models yet in {store.folder.absolute()}: a run writes them there")
    for manifest in manifests:
        if as_json:
            print_json(manifest)
            continue
        study = manifest["study"] or "unnamed"
        echo(f"{study}  {manifest['run']}  {manifest['at']}  {manifest['stop'].lower()}")
        for file in manifest["models"]:
            echo(f"    {Path(manifest['folder']) / file['file']}")


def _export(path: Path, output: Path, *, as_json: bool) -> None:
    need_extra("onnx", "onnx")
    from coreg_wire.files.output import ONNX, check_output
    from site_agent.models.file import contains_records, load_model
    from site_agent.models.onnx_export import export

    check_output(output, "--export", ONNX)
    model = load_model(path)
    export(output, model)
    if contains_records(model.function):
        echo(
            f"{output} holds rows of this site's table, as {path} does. Keep it as private.",
            err=True,
        )
    if as_json:
        print_json({"event": "exported", "model": str(path), "output": str(output)})
    else:
        echo(f"{output}: the model {path} in ONNX")


COMMANDS: tuple[Callable[..., None], ...] = (predict, evaluate, report, models)
