"""Unlearning: jobs, evaluations, recovery, rollback, receipts and the model versions that they make."""
