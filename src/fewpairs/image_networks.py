"""A door: networks of images live in `networks.images`, and are imported from here."""

from fewpairs.networks.images import ConvPotential, UNet

__all__ = ["ConvPotential", "UNet"]
