"""A door: density ratios and the two-sample test live in `shift.ratios`, and are imported from here."""

from fewpairs.shift.ratios import DensityRatio, compare_samples, effective_size, estimate_density_ratio

__all__ = ["DensityRatio", "compare_samples", "effective_size", "estimate_density_ratio"]
