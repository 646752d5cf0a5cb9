"""The commands of coreg-sim, one a file: each parses, builds, runs, and says what came of it."""
