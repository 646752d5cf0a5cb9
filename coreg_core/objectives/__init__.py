"""The objectives of a plan, one file each: its terms, its questions, what their answers tell, its
limits.
"""
