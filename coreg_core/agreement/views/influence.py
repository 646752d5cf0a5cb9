r"""How much one label can make of an answer, and how much of the bare kernel an answer can be: bounds from three numbers.

What a site may be asked to answer for is judged by these before anything is computed (`site_agent.policy.units`);
docs/mathematics.md, "Influence", has the proofs. They hold in every form: a finite span has the projection of k,
whose diagonal is no larger. Knows numbers alone.
"""

import math


def label_influence(label: float, instance: float, ridge: float, weight: float = 0.0) -> float:
    r"""$|\partial\,\mathrm{respond}_z / \partial y_i| \le \sqrt{k_{ii} k_{zz} / ((\nu + k_{ii})(\nu + \mu k_{zz}))}$.

    Parameters
    ----------
    label
        k(x_i, x_i) at the labelled row.
    instance
        k(z, z) at the instance.
    ridge
        ν > 0.
    weight
        μ ≥ 0.
    """
    return math.sqrt(label / (ridge + label) * instance / (ridge + weight * instance))


def coinciding_influence(label: float, ridge: float, weight: float = 0.0) -> float:
    r"""The same where an unlabelled instance has the labelled row's features: $\le k_{ii} / (\nu + (1 + \mu) k_{ii})$.

    Where the kernel of that row with every other is 0 it is attained, and the answer is that label times this and nothing else.
    """
    return label / (ridge + (1.0 + weight) * label)


def bare_kernel(size: float, ridge: float) -> float:
    r"""c with $c\,K_{ZZ} \preceq \Sigma \preceq K_{ZZ}$: $c = \nu / (\nu + \mathrm{tr} K_{XX})$.

    Near 1 the labelled rows leave the kernel as it is: answers to m directions then are the Gram matrix of the shared rows.

    Parameters
    ----------
    size
        tr K_XX, or any other number that is at least ‖K_XX‖₂.
    ridge
        ν > 0.
    """
    return ridge / (ridge + size)
