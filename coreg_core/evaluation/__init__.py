"""Does joining pay? What a site concludes from its own labels: errors of left-out rows, a verdict, intervals, its coupling.

Pure functions of one site's numbers: no rows of others, no file, no message, no sentence. Sentences are made elsewhere, from the
typed values here. The rules and their figures come from `coreg-sim benefit` (docs/research/benefit.md).
"""
