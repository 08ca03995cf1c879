"""Which settings suit the data, judged by held-out pairs: candidates, families of plans, judges, search, stacking.

Nothing here knows estimators, users' units or files.
"""
