"""Pairs that come from a corner of the population: density ratios, and whether there is a bias at all.

Arrays come in, weights go out. Nothing here knows how a model is learnt.
"""
