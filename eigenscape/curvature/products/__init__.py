"""How a whole network is multiplied: kept graphs, one trace."""
