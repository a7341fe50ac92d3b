"""How one layer is represented: factors, dense, tail."""
