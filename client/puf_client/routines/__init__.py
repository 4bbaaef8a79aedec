"""Local computations in torch: training, evaluation, measurement, and the routines of other unlearning methods.

Equal seeds give equal bits in every process on the same kind of CPU: `train.prepare` fixes threads and algorithms, and
all random choices follow from `RoutineContext.stream`.
"""
