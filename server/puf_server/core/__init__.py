"""The federation as values and pure functions: no gRPC, no files, no clocks. Time comes in as an argument.

config     what the operator decides
state      what is known: members, the round under way, tickets, model versions
roster     joining, being alive, leaving
rounds     opening, receiving, closing, committing
tickets    filing, withdrawing, moving along the life cycle
methods    ways to unlearn, one file each: what they ask of whom, and their equations
jobs   one unlearning from the first measurement to its application
recovery   the rounds after it, and completion
history    what is remembered of updates, where a method needs it
schedule   what happens next
work       what a client is asked to do
"""
