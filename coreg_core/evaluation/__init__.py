"""A site's own labels: left-out errors with standard errors, and probabilities of a yes/no target.

Pure functions of one site's numbers, without files, messages or texts. Other modules make the texts from the typed values here.
"""
