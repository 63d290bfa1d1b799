"""Writing the contract's graph: layers, head, novelty, Laplace draws, ensembles."""
