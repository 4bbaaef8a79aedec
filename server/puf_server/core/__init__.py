"""The federation as values and pure functions: no gRPC, no files, no clocks. Time comes in as an argument.

config         what the operator decides
state          records of what is known, and the presence of workers
roster         joining, leaving, approval, choice of clients
rounds         opening, receiving, closing, committing
assignments    what a client is asked to do
tickets        filing, withdrawing, expiry
unlearning     jobs, evaluations, recovery, rollback, receipts
methods        ways to unlearn, one file each
scheduler      what happens next
"""
