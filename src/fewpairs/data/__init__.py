"""Rows before anything is learnt from them: arrays and tables are checked, gathered, scaled and cut into folds.

Nothing here knows a model or a network. What a user hands in wrongly is refused here, with what to do about it.
"""
