"""The parts of a site's model: features, smoother, kernel expansions, hyperparameters."""
