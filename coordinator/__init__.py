"""The coordinator: serves the federation, relays sealed messages and remembers the runs. It reads
no label, no feature and no sum.
"""
