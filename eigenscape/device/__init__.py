"""Arithmetic of a device: full precision during our computations, checked eigenvectors."""

from eigenscape.device.eigenvectors import eigh as eigh
from eigenscape.device.precision import full_precision as full_precision
from eigenscape.device.precision import product_defects as product_defects

__all__ = [
    "eigh",
    "full_precision",
    "product_defects",
]
