"""Block GMRES for the fixed point of the additive objective, and its certificate."""
