"""Classes and cross-classes."""
