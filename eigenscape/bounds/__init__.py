"""Generalisation certificates: upper bounds on the error on new data, with their arithmetic."""

from eigenscape.bounds.kl import binary_kl as binary_kl
from eigenscape.bounds.kl import gaussian_kl as gaussian_kl
from eigenscape.bounds.kl import kl_inverse as kl_inverse
from eigenscape.bounds.pac_bayes import Certificate as Certificate
from eigenscape.bounds.pac_bayes import grid_indices as grid_indices
from eigenscape.bounds.pac_bayes import grid_variance as grid_variance
from eigenscape.bounds.pac_bayes import pac_bayes_bound as pac_bayes_bound
from eigenscape.bounds.pac_bayes import pac_bayes_certificate as pac_bayes_certificate
from eigenscape.bounds.pac_bayes import sampled_error_bound as sampled_error_bound

__all__ = [
    "Certificate",
    "binary_kl",
    "gaussian_kl",
    "grid_indices",
    "grid_variance",
    "kl_inverse",
    "pac_bayes_bound",
    "pac_bayes_certificate",
    "sampled_error_bound",
]
