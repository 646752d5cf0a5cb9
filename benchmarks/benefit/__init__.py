"""The benefit study on real tables: every method beside each site alone
(docs/research/benefit.md).
"""
