"""The agreement objective (coRLSR, Brefeld et al., 2006): views, schedules, certificates, closed
forms.
"""
