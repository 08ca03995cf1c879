"""Coloured digits, from a 2 to a 3 in another hue, by networks and Langevin chains."""
