"""The names of the data sets that the papers use. The sets themselves are the user's: a folder, or fetched from OpenML."""

CORLSR = (
    "auto93", "autoHorse", "autoMpg", "autoPrice", "baskball", "bodyfat", "breastTumor", "cholesterol", "cleveland",
    "cloud", "cpu", "echoMonths", "fishcatch", "fruitfly", "housing", "hungarian", "lowbwt", "machine_cpu", "meta",
    "pbc", "pharynx", "pollution", "pwLinear", "pyrim", "sensory", "servo", "sleep", "stock", "strike", "triazines",
    "veteran", "wisconsin",
)  # fmt: skip
"""The 32 of Brefeld et al. (2006), section 5.1; inferred: of the WEKA pool those of at least 50 rows and 4 attributes and
at most 4176 rows, which are 32."""

RADEMACHER = (
    "auto93", "autoHorse", "autoMpg", "autoPrice", "bodyfat", "bolts", "breastTumor", "cholesterol", "cleveland", "cloud",
    "cpu", "detroit", "echoMonths", "fishcatch", "hungarian", "longley", "lowbwt", "machine_cpu", "pbc", "pharynx",
    "pollution", "pwLinear", "pyrim", "schlvote", "sleep", "triazines", "veteran", "wisconsin",
)  # fmt: skip

SETS = {"corlsr32": CORLSR, "rademacher29": RADEMACHER}
