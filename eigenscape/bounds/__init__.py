"""Generalisation certificates: upper bounds on the error on new data, with their arithmetic."""

from eigenscape.bounds.certify import NetworkCertificate, certify
from eigenscape.bounds.kl import binary_kl, gaussian_kl, kl_inverse
from eigenscape.bounds.optimise import PosteriorFit, optimise_posterior
from eigenscape.bounds.pac_bayes import (
    Certificate,
    grid_indices,
    grid_variance,
    pac_bayes_bound,
    pac_bayes_certificate,
    sampled_error_bound,
)
from eigenscape.bounds.posterior import (
    Basis,
    LayerBasis,
    Posterior,
    basis_curvature,
    layer_basis,
    make_posterior,
)
from eigenscape.bounds.recipe import BoundRecipe, bound_recipe

__all__ = [
    "Basis",
    "BoundRecipe",
    "Certificate",
    "LayerBasis",
    "NetworkCertificate",
    "Posterior",
    "PosteriorFit",
    "basis_curvature",
    "binary_kl",
    "bound_recipe",
    "certify",
    "gaussian_kl",
    "grid_indices",
    "grid_variance",
    "kl_inverse",
    "layer_basis",
    "make_posterior",
    "optimise_posterior",
    "pac_bayes_bound",
    "pac_bayes_certificate",
    "sampled_error_bound",
]
