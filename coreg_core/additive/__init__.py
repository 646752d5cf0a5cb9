"""The additive objective: sites learn parts that add up, over sums of vectors on the shared
instances (docs/research/mathematics.md).
"""
