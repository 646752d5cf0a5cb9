"""The commands of a federation that stands; `coordinator.cli` puts them beside its own."""
