"""The agreement objective (coRLSR, Brefeld et al., 2006): views, solvers, certificates, closed
forms.
"""
