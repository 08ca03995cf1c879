"""Plans p(y|x) = exp(f(y) − c(x, y)) / Z(x), and the distributions they give when called.

The mathematics of the closed form is here: costs, potentials, mixtures, ensembles, the linear plan, classes, the first atoms.
Nothing here trains, and nothing here chooses.
"""
