"""Does joining pay? A site's conclusions from its own labels: left-out errors, a recommendation, intervals, its coupling.

Pure functions of one site's numbers, without files, messages or texts. Other modules make the texts from the typed values
here. The rules and their figures come from the benefit study (docs/research/benefit.md).
"""
