"""Measures what models know: accuracies, membership attacks, distance to the retrained model, costs."""
