"""Blocks of a matrix: norms, spectra, preconditioning."""
