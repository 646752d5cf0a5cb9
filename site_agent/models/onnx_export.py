"""A model file as an ONNX graph of standard operators: encoder, kernels and forest, in double
precision (extra ``onnx``).

One input for each column of the table, of shape (n, 1): numbers with NaN for an empty cell, dates
in days since 1970-01-01, truth values as 0 and 1, texts with "" for an empty cell. One output,
``prediction`` (n,): the target's units, or a probability; ``coreg/prediction`` if a column has the
first name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coreg_core.additive.check import Correction
from coreg_core.additive.features import (
    CLIP,
    DIRECTION,
    FeatureBasis,
    Forest,
    LocalModel,
    SiteFeatures,
)
from coreg_core.additive.site_model import ClassModel, LocalClasses, SiteModel
from coreg_core.agreement.views import KernelExpansion
from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.evaluation import ClassProbabilities, Probability
from coreg_core.kernels import Gaussian, Linear
from coreg_wire.files.output import ONNX, write_output
from site_agent.data.columns import Column
from site_agent.data.preprocessing import Preprocessing
from site_agent.models.file import Function, ModelFile

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 19  # the first one that compares texts
ML_OPSET = 3
IR = 9  # the format of that opset


def export(path: Path, model: ModelFile) -> None:
    """Write the model in ONNX with mode 0600: the points of kernels are rows of the site's table,
    as in the model file.
    """
    write_output(path, graph_of(model).SerializeToString(), "--export", ONNX)


def graph_of(model: ModelFile) -> "ModelProto":
    from onnx import TensorProto, helper

    columns = [column.name for column in model.preprocessing.columns]
    if not all(columns):
        raise UsageError("a column without a name cannot be an input of an ONNX file.")
    graph = _Graph(columns)
    output = "prediction" if "prediction" not in columns else graph.own("prediction")
    value = _function(graph, model.function, _encoded(graph, model.preprocessing))
    predicted = graph("Add", graph("Mul", value, model.divisor), model.shift)
    shape: list[int] = [-1]
    match model.probability:
        case Probability(slope, offset):
            predicted = graph("Sigmoid", graph("Add", graph("Mul", predicted, slope), offset))
        case ClassProbabilities(slope, offsets):
            logits = graph("Add", graph("Mul", predicted, slope), offsets[None, :])
            predicted = graph("Softmax", logits, axis=1)
            shape.append(len(offsets))
        case None:  # a number
            pass
    graph.nodes.append(
        helper.make_node("Reshape", [predicted, graph.constant(np.array(shape))], [output])
    )
    inputs = [
        helper.make_tensor_value_info(
            column.name,
            TensorProto.STRING if column.kind == "text" else TensorProto.DOUBLE,
            ["n", 1],
        )
        for column in model.preprocessing.columns
    ]
    outputs = [helper.make_tensor_value_info(output, TensorProto.DOUBLE, ["n", *shape[1:]])]
    nodes = helper.make_graph(graph.nodes, "coreg", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    whole = helper.make_model(nodes, opset_imports=opsets, ir_version=IR, producer_name="coreg")
    helper.set_model_props(whole, {"site": model.site, "run": model.run, "target": model.target})
    return whole


class _Graph:
    """The nodes and constants of a graph. A call adds a node and returns the name of its output.

    Inputs have the names of the table's columns, and everything in between a name that no column
    begins with: in ONNX all of them share one space of names.
    """

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._space = "coreg/"
        while any(name.startswith(self._space) for name in columns):
            self._space += "/"

    def own(self, name: str) -> str:
        """A name that is no column's."""
        return f"{self._space}{name}"

    def __call__(
        self, operator: str, *inputs: "str | float | Arr", domain: str = "", **attributes: Any
    ) -> str:
        from onnx import helper

        names = [
            value if isinstance(value, str) else self.constant(np.asarray(value))
            for value in inputs
        ]
        output = self.own(f"t{len(self.nodes)}")
        self.nodes.append(helper.make_node(operator, names, [output], domain=domain, **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        name = self.own(f"c{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


def _encoded(graph: _Graph, preprocessing: Preprocessing) -> str:
    """`Preprocessing.transform`."""
    blocks = [block for column in preprocessing.columns for block in _column(graph, column)]
    return graph("Concat", *blocks, axis=1)


def _column(graph: _Graph, column: Column) -> list[str]:
    from onnx import TensorProto

    if column.kind == "text":
        levels = np.array(column.levels, dtype=object)[None, :]
        blocks = [graph("Cast", graph("Equal", column.name, levels), to=TensorProto.DOUBLE)]
        missing = graph("Equal", column.name, np.array("", dtype=object))
    else:
        missing = graph("IsNaN", column.name)
        filled = graph("Where", missing, column.fill, column.name)
        blocks = [graph("Div", graph("Sub", filled, column.mean), column.scale)]
    if column.indicator:
        flag = graph("Cast", missing, to=TensorProto.DOUBLE)
        blocks.append(
            graph("Div", graph("Sub", flag, column.indicator_mean), column.indicator_scale)
        )
    return blocks


def _function(graph: _Graph, function: Function, X: str) -> str:
    match function:
        case ClassModel(models) | LocalClasses(models):
            return graph("Concat", *(_function(graph, each, X) for each in models), axis=1)
        case KernelExpansion():
            return graph("MatMul", _kernel(graph, function, X), function.coef[:, None])
        case LocalModel():
            return _local(graph, function, X)
        case SiteModel():
            if function.learned is not None:
                joined = _local(graph, function.learned, X)
            else:
                W = _features(graph, function.features, X)
                weighed = graph("MatMul", W, function.joined[:, None])
                joined = graph("Add", weighed, function.intercept)
            return _corrected(graph, function.correct_joined, joined, function.local, X)


def _kernel(graph: _Graph, function: KernelExpansion, X: str) -> str:
    match function.kernel:
        case Gaussian(bandwidth):
            return _gaussian(graph, X, function.points, bandwidth)
        case Linear():
            return graph("MatMul", X, function.points.T)


def _gaussian(graph: _Graph, X: str, points: Arr, width: float) -> str:
    # Distances from the points' middle: of large values with small differences squares would keep
    # few digits.
    middle = points.mean(axis=0)
    X = graph("Sub", X, middle)
    points = points - middle
    squares = graph("ReduceSum", graph("Mul", X, X), np.array([1]))
    apart = graph(
        "Sub", graph("Add", squares, (points**2).sum(1)), graph("MatMul", X, 2.0 * points.T)
    )
    return graph("Exp", graph("Div", graph("Max", apart, 0.0), -width))


def _standardised(graph: _Graph, basis: FeatureBasis, X: str) -> str:
    return graph("Clip", graph("Div", graph("Sub", X, basis.mean), basis.deviation), -CLIP, CLIP)


def _basis(graph: _Graph, basis: FeatureBasis, X: str) -> str:
    S = _standardised(graph, basis, X)
    if basis.width:
        S = graph("MatMul", _gaussian(graph, S, basis.landmarks, basis.width), basis.transform)
    return graph("Sub", S, basis.shift)


def _features(graph: _Graph, features: SiteFeatures, X: str) -> str:
    Phi = _basis(graph, features.basis, X)
    V = features.components
    if not features.directions:
        return graph("Sub", graph("MatMul", Phi, V), features.centre)
    [local] = features.directions
    S = _standardised(graph, local.basis, X)
    columns = [graph("MatMul", Phi, local.coef[:, None])]
    if local.forest is not None:
        columns.append(_forest(graph, local.forest, S))
    scaled = graph(
        "Sub",
        graph("Mul", graph("Concat", *columns, axis=1), DIRECTION / local.unit),
        DIRECTION * features.levels,
    )
    ridge = graph("Sub", graph("MatMul", Phi, V[: -len(columns)]), features.centre)
    return graph("Add", ridge, graph("MatMul", scaled, V[-len(columns) :]))


def _local(graph: _Graph, local: LocalModel, X: str) -> str:
    ridge = graph(
        "Add", graph("MatMul", _basis(graph, local.basis, X), local.coef[:, None]), local.intercept
    )
    if local.forest is None:
        return ridge
    forest = _forest(graph, local.forest, _standardised(graph, local.basis, X))
    return graph("Add", graph("Mul", ridge, 1.0 - local.weight), graph("Mul", forest, local.weight))


def _corrected(
    graph: _Graph, correction: Correction, predicted: str, local: LocalModel | None, X: str
) -> str:
    if correction.slope != 1.0:
        centred = graph("Sub", predicted, correction.centre)
        predicted = graph("Add", graph("Mul", centred, correction.slope), correction.level)
    if local is None or correction.weight == 1.0:
        return predicted
    alone = graph("Mul", _local(graph, local, X), 1.0 - correction.weight)
    return graph("Add", alone, graph("Mul", predicted, correction.weight))


def _forest(graph: _Graph, forest: Forest, S: str) -> str:
    """The mean of the trees.

    Rows and thresholds are float32, as the trees were grown: x ≤ t is x ≤ the float32 below t.
    """
    from onnx import TensorProto

    near = forest.threshold.astype(np.float32)
    threshold = np.where(near > forest.threshold, np.nextafter(near, np.float32(-np.inf)), near)
    ends = [*forest.roots.tolist()[1:], len(forest.value)]
    tree = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
    node = np.arange(len(tree)) - forest.roots[tree]
    leaf = forest.children[:, 0] == np.arange(len(tree))
    below = forest.children - forest.roots[tree][:, None]
    total = graph(
        "TreeEnsembleRegressor", graph("Cast", S, to=TensorProto.FLOAT), domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=tree.tolist(), nodes_nodeids=node.tolist(),
        nodes_featureids=forest.column.tolist(),
        nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(), nodes_values=threshold.tolist(),
        nodes_truenodeids=np.where(leaf, 0, below[:, 0]).tolist(),
        nodes_falsenodeids=np.where(leaf, 0, below[:, 1]).tolist(),
        target_treeids=tree[leaf].tolist(), target_nodeids=node[leaf].tolist(),
        target_ids=[0] * int(leaf.sum()),
        target_weights=forest.value[leaf].tolist(), aggregate_function="SUM",
    )  # fmt: skip
    return graph("Div", graph("Cast", total, to=TensorProto.DOUBLE), float(len(ends)))
