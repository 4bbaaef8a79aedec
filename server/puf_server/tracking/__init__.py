"""Figures of committed rounds, and exported models, for MLflow, TensorBoard or Weights & Biases: `puf-server serve --track`."""
