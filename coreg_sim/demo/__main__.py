"""`python -m coreg_sim.demo`: the demonstration."""

from coreg_sim.demo.demo import main

raise SystemExit(main())
