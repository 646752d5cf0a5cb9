"""The federation.toml that `init` writes: every section, the keys that are chosen first, and why."""

SAMPLE = """\
# A federation. `coreg-coordinator run federation.toml` serves it; every key and its default is in docs/operators-guide.md.

[federation]
name = "my federation"
# The names in the sites' certificates. The run begins when all of them have joined.
sites = ["site-a", "site-b", "site-c"]
# Fewest sites to go on with (default: all), and what to do when one does not answer: "wait" or "continue".
# min_sites = 3
# on_dropout = "wait"
# With "continue": how often a site that was dropped is taken back.
# max_rejoins = 5

[model]
# "exact" (m up to about 10 000), "semi-parametric" (m up to millions), "landmarks" or "linear".
form = "exact"
kernel = "gaussian"
# λ: choose it, never assume it. 0 trains every site alone; a list, as in [0.001, 0.01], trains a path at once, with 0 in it,
# and each site keeps what its own labels are for. { relative = [0.1, 1.0] } means the same for any number of sites and rows.
coupling = 0.01
# Each site centres its targets by its own mean. "standardised" divides by its own deviation too; "raw" does neither.
label_units = "centred"

[schedule]
name = "conjugate-gradients"
# Stop when the certified gap is below tolerance · Σ‖y‖², and every prediction certified to this (in targets' units).
tolerance = 1e-10
prediction_tolerance = 1e-6
max_rounds = 1000

[privacy]
# What this coordinator learns of the sites' answers: "secure" (masked sums; three sites at least, each of which pins the others'
# keys), or each one ("plaintext"), from which labels of known rows can be computed: every policy has to allow that.
aggregation = "secure"
# Whether sums may be taken again with one site more or fewer, from which that site's answers follow.
membership_changes = false
# What this coordinator learns of the convergence: how often the gap has to be halved ("coarse"), or residuals and gaps of
# every round ("exact"), where every site's policy allows it.
convergence_report = "coarse"

[service]
listen = "127.0.0.1:7600"
# The directory with ca.pem, coordinator.key, coordinator.pem and authorised-sites.
identity = "."
store = "runs.sqlite"

[timeouts]
# seconds: for all to join, to accept the plan (they factor then), to answer a round, to come back when stalled
join = 600
plan = 600
round = 60
stall = 600
"""
