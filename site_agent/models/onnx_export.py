"""A model file as an ONNX graph of standard operators: encoder, kernels and forest, in double
precision (extra ``onnx``).

One input for each column of the table, of shape (n, 1): numbers with NaN for an empty cell, dates
in days since 1970-01-01, truth values as 0 and 1, texts with "" for an empty cell. One output,
``prediction`` (n,): the target's units, or a probability; ``coreg/prediction`` if a column has the
first name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
from site_agent.models.figures import Values
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
    output = "prediction"
    if "prediction" in columns:
        output = graph.own("prediction")
    X = _encoded(graph, model.preprocessing)
    predicted = _function(model.function, X) * model.divisor + model.shift
    shape: list[int] = [-1]
    match model.probability:
        case Probability(slope, offset):
            predicted = (predicted * slope + offset).node("Sigmoid")
        case ClassProbabilities(slope, offsets):
            predicted = (predicted * slope + offsets[None, :]).node("Softmax", axis=1)
            shape.append(len(offsets))
        case None:  # a number
            pass
    reshaped = [predicted.name, graph.constant(np.array(shape))]
    graph.nodes.append(helper.make_node("Reshape", reshaped, [output]))
    inputs = []
    for column in model.preprocessing.columns:
        kind = TensorProto.STRING if column.kind == "text" else TensorProto.DOUBLE
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["n", 1]))
    outputs = [helper.make_tensor_value_info(output, TensorProto.DOUBLE, ["n", *shape[1:]])]
    nodes = helper.make_graph(graph.nodes, "coreg", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    whole = helper.make_model(nodes, opset_imports=opsets, ir_version=IR, producer_name="coreg")
    helper.set_model_props(whole, {"site": model.site, "run": model.run, "target": model.target})
    return whole


class _Graph:
    """The nodes and constants of a graph.

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

    def constant(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        name = self.own(f"c{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


@dataclass(frozen=True)
class _Value:
    """A value in a graph. Its operators add nodes, and are those of an array of numpy."""

    graph: _Graph
    name: str

    def node(self, operator: str, *others: "Operand", **attributes: Any) -> "_Value":
        """The output of a new node with this input and the others; a number is a constant."""
        from onnx import helper

        names = [self.name]
        for other in others:
            if isinstance(other, _Value):
                names.append(other.name)
            else:
                names.append(self.graph.constant(np.asarray(other)))
        output = self.graph.own(f"t{len(self.graph.nodes)}")
        self.graph.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return _Value(self.graph, output)

    def __add__(self, other: "Operand") -> "_Value":
        return self.node("Add", other)

    def __sub__(self, other: "Operand") -> "_Value":
        return self.node("Sub", other)

    def __mul__(self, other: "Operand") -> "_Value":
        return self.node("Mul", other)

    def __truediv__(self, other: "Operand") -> "_Value":
        return self.node("Div", other)

    def __matmul__(self, other: Arr) -> "_Value":
        return self.node("MatMul", other)


Operand: TypeAlias = _Value | float | Arr


def _beside(blocks: Sequence[_Value]) -> _Value:
    first, *others = blocks
    return first.node("Concat", *others, axis=1)


def _encoded(graph: _Graph, preprocessing: Preprocessing) -> _Value:
    """`Preprocessing.transform`."""
    blocks = list[_Value]()
    for column in preprocessing.columns:
        blocks += _column(column, _Value(graph, column.name))
    return _beside(blocks)


def _column(column: Column, values: _Value) -> list[_Value]:
    from onnx import TensorProto

    if column.kind == "text":
        levels = np.array(column.levels, dtype=object)[None, :]
        blocks = [values.node("Equal", levels).node("Cast", to=TensorProto.DOUBLE)]
        missing = values.node("Equal", np.array("", dtype=object))
    else:
        missing = values.node("IsNaN")
        filled = missing.node("Where", column.fill, values)
        blocks = [(filled - column.mean) / column.scale]
    if column.indicator:
        flag = missing.node("Cast", to=TensorProto.DOUBLE)
        blocks.append((flag - column.indicator_mean) / column.indicator_scale)
    return blocks


def _function(function: Function, X: _Value) -> _Value:
    match function:
        case ClassModel(models) | LocalClasses(models):
            return _beside([_function(model, X) for model in models])
        case KernelExpansion():
            return _kernel(function, X) @ function.coef[:, None]
        case LocalModel():
            return _local(function, X)
        case SiteModel():
            if function.learned is not None:
                joined = _local(function.learned, X)
            else:
                W = _features(function.features, X)
                joined = W @ function.joined[:, None] + function.intercept
            return _corrected(function.correct_joined, joined, function.local, X)


def _kernel(function: KernelExpansion, X: _Value) -> _Value:
    match function.kernel:
        case Gaussian(bandwidth):
            return _gaussian(X, function.points, bandwidth)
        case Linear():
            return X @ function.points.T


def _gaussian(X: _Value, points: Arr, width: float) -> _Value:
    # Distances from the points' middle: of large values with small differences squares would keep
    # few digits.
    middle = points.mean(axis=0)
    X -= middle
    points = points - middle
    squares = (X * X).node("ReduceSum", np.array([1]))
    apart: _Value = squares + (points**2).sum(1) - X @ (2.0 * points.T)
    return (apart.node("Max", 0.0) / -width).node("Exp")


def _standardised(basis: FeatureBasis, X: _Value) -> _Value:
    return ((X - basis.mean) / basis.deviation).node("Clip", -CLIP, CLIP)


def _basis(basis: FeatureBasis, X: _Value) -> _Value:
    S = _standardised(basis, X)
    if basis.width:
        S = _gaussian(S, basis.landmarks, basis.width) @ basis.transform
    return S - basis.shift


def _features(features: SiteFeatures, X: _Value) -> _Value:
    Phi = _basis(features.basis, X)
    V = features.components
    if not features.directions:
        return Phi @ V - features.centre
    [local] = features.directions
    S = _standardised(local.basis, X)
    columns = [Phi @ local.coef[:, None]]
    if local.forest is not None:
        columns.append(_forest(local.forest, S))
    directions = _beside(columns) * (DIRECTION / local.unit) - DIRECTION * features.levels
    n = len(columns)
    return Phi @ V[:-n] - features.centre + directions @ V[-n:]


def _local(local: LocalModel, X: _Value) -> _Value:
    ridge = _basis(local.basis, X) @ local.coef[:, None] + local.intercept
    if local.forest is None:
        return ridge
    forest = _forest(local.forest, _standardised(local.basis, X))
    return ridge * (1.0 - local.weight) + forest * local.weight


def _corrected(
    correction: Correction, predicted: _Value, local: LocalModel | None, X: _Value
) -> _Value:
    if correction.slope != 1.0:
        predicted = (predicted - correction.centre) * correction.slope + correction.level
    if local is None or correction.weight == 1.0:
        return predicted
    return _local(local, X) * (1.0 - correction.weight) + predicted * correction.weight


def _forest(forest: Forest, S: _Value) -> _Value:
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
    below = np.where(leaf[:, None], 0, forest.children - forest.roots[tree][:, None])
    lists = {
        "nodes_treeids": tree,
        "nodes_nodeids": node,
        "nodes_featureids": forest.column,
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
        "nodes_values": threshold,
        "nodes_truenodeids": below[:, 0],
        "nodes_falsenodeids": below[:, 1],
        "target_treeids": tree[leaf],
        "target_nodeids": node[leaf],
        "target_ids": np.zeros(leaf.sum(), dtype=np.int64),
        "target_weights": forest.value[leaf],
    }
    attributes: Values = {name: values.tolist() for name, values in lists.items()}
    attributes |= {"domain": "ai.onnx.ml", "n_targets": 1, "aggregate_function": "SUM"}
    total = S.node("Cast", to=TensorProto.FLOAT).node("TreeEnsembleRegressor", **attributes)
    return total.node("Cast", to=TensorProto.DOUBLE) / float(len(ends))
