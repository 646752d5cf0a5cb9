"""What a site computes with: features, smoother, kernel expansions, hyperparameters."""
