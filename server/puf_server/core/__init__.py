"""The federation as values and pure functions: no gRPC, no files, no clocks. Time comes in as an argument.

config     what the operator decides
state      what is known: members, the round under way, tickets, model versions
roster     joining, being alive, leaving
rounds     opening, receiving, closing, committing
tickets    filing, withdrawing, moving along the life cycle
episodes   one unlearning from the first measurement to the end of recovery
schedule   what happens next
work       what a client is asked to do
"""
