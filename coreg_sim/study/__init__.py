"""Studies: jobs that resume, the report of their results, and how a terminal shows it."""
