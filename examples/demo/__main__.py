"""`python -m examples.demo`: the demonstration."""

from examples.demo.demo import main

raise SystemExit(main())
