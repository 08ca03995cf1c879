"""Networks without a normaliser, alone or on top of a plan that is known: energies, chains, normalisers, how they are learnt.

`MapCost` is the cost of leaving a map, for images. Nothing here knows estimators, users' units or files.
"""

from fewpairs.energies.energy import Energy, InformedCost, MapCost, NeuralCost, NeuralPotential

__all__ = ["Energy", "InformedCost", "MapCost", "NeuralCost", "NeuralPotential"]
