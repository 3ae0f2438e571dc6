"""The rolling horizon: epoch after epoch, demand and supply that move."""
