"""Class means and moments."""
