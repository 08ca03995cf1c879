"""A door: Langevin samplers live in `energies.samplers`, and are imported from here."""

from fewpairs.energies.samplers import AdjustedLangevin, Chains, Langevin, ReplayBuffer, annealed_log_partition

__all__ = ["AdjustedLangevin", "Chains", "Langevin", "ReplayBuffer", "annealed_log_partition"]
